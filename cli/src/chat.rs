//! `foretoken chat`: a conversation in the terminal, over HTTP.
//!
//! Tokens that a draft had proposed are green: what is green came for free.

use std::{
    io::{self, IsTerminal as _},
    net::IpAddr,
};

use anyhow::{Context as _, bail};
use foretoken_target::MAX_LOOKAHEAD;
use reqwest::{
    Client, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};

mod answer;
mod events;
mod spelling;

use self::{
    answer::{Answer, TooLong},
    spelling::Piece,
};
use crate::{
    child::{self, keys_in},
    failure::usage,
    generate::PolicyName,
    output::{print, remark},
    stop::Interrupts,
};

const GREEN: &str = "\x1b[32m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Arguments of `foretoken chat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the HTTP API
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// API key, if the server asks for one
    #[arg(
        long,
        env = "FORETOKEN_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Model [default: the first that the server has]
    #[arg(long)]
    model: Option<String>,
    /// Instruction that comes before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Randomness: 0 takes the likeliest token [default: the model's]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = parse_temperature)]
    temperature: Option<f32>,
    /// How it is decoded [default: the deployment's policy]
    #[arg(long)]
    policy: Option<PolicyName>,
    /// Tokens the draft proposes per round [default: the deployment's]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_LOOKAHEAD)))]
    lookahead: Option<u32>,
    /// No colours
    #[arg(long)]
    plain: bool,
}

/// Talks until the end of the input (Ctrl-D). Ctrl-C stops an answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = child::small_runtime()?;
    let base = base_url(&args.url);
    let client = client(&base, args.api_key.as_deref())?;
    let model = runtime.block_on(choose_model(&client, &base, args.model.as_deref()))?;
    let mut chat = Chat {
        client,
        url: format!("{base}/v1/chat/completions"),
        request: request(args, &model),
        max_tokens: args.max_tokens as usize,
        messages: args
            .system
            .iter()
            .map(|text| message("system", text))
            .collect(),
        colours: !args.plain && io::stdout().is_terminal(),
        held: None,
    };
    let mut editor = DefaultEditor::new().context("cannot use the terminal")?;
    let is_person = io::stdin().is_terminal();
    remark(format_args!("{model}; Ctrl-C stops an answer, Ctrl-D ends"));
    loop {
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                // A history that is not kept is no reason to stop.
                let _ = editor.add_history_entry(&line);
                let said = runtime.block_on(chat.say(&line));
                match said {
                    // A person sees it and goes on; a script sees the exit code.
                    Err(error) if is_person => remark(format_args!("error: {error:#}")),
                    said => said?,
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) if is_person => return Err(error).context("cannot read the terminal"),
            Err(error) => return Err(error).context("cannot read standard input"),
        }
    }
}

/// JSON has no numbers that are none: the server would take its default.
fn parse_temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (0.0..=2.0).contains(number))
        .ok_or_else(|| "must be a number from 0 to 2".to_owned())
}

/// What sends requests to `base`, with this key.
fn client(base: &str, key: Option<&str>) -> anyhow::Result<Client> {
    let mut headers = HeaderMap::new();
    // Several may be good; one is enough.
    if let Some(key) = key.and_then(|keys| keys_in(keys).next()) {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut value = value.map_err(|_| usage("--api-key has characters that no key has"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut builder = Client::builder().default_headers(headers);
    if is_this_machine(base) {
        // A proxy would look for the server on its own machine.
        builder = builder.no_proxy();
    }
    builder.build().context("cannot make an HTTP client")
}

/// A conversation.
struct Chat {
    client: Client,
    url: String,
    /// What every request has.
    request: Value,
    /// Most tokens of an answer.
    max_tokens: usize,
    messages: Vec<Value>,
    colours: bool,
    /// From the first answer on.
    held: Option<Interrupts>,
}

impl Chat {
    /// Sends a message and shows the answer as it comes, or until Ctrl-C.
    async fn say(&mut self, text: &str) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::new()?;
        // One after the answer, while the prompt is not there yet, does not end the chat.
        self.held.get_or_insert(Interrupts::new()?);
        self.messages.push(message("user", text));
        let begun = loop {
            let begun = self.begin(&mut interrupts).await;
            let is_too_long = begun.as_ref().is_err_and(anyhow::Error::is::<TooLong>);
            if !(is_too_long && self.forget_oldest()) {
                break begun;
            }
            let (dim, plain) = self.dim();
            remark(format_args!(
                "{dim}the conversation is too long: its oldest turn is left out{plain}"
            ));
        };
        let mut answer = match begun {
            Ok(answer) => answer,
            Err(error) => {
                self.messages.pop();
                return Err(if error.is::<TooLong>() {
                    error
                        .context("even alone this is too long: say it, or --system, in fewer words")
                } else {
                    error
                });
            }
        };
        let outcome = self.show(&mut answer, &mut interrupts).await;
        // What was said is said, even if the rest is missing.
        self.messages.push(message("assistant", answer.text()));
        if outcome.is_err() && !answer.text().is_empty() {
            // The error has a line of its own.
            print("\n")?;
        }
        outcome?;
        let summary = answer.summary();
        let (dim, plain) = self.dim();
        Ok(print(&format!("\n{dim}{summary}{plain}\n"))?)
    }

    /// Asks for the answer to the conversation so far.
    async fn begin(&self, interrupts: &mut Interrupts) -> anyhow::Result<Answer> {
        let mut request = self.request.clone();
        request["messages"] = self.messages.clone().into();
        tokio::select! {
            sent = self.client.post(&self.url).json(&request).send() => Answer::begin(sent, self.max_tokens).await,
            () = interrupts.next() => Err(anyhow::anyhow!("stopped before the answer began")),
        }
    }

    /// Leaves out the oldest turn, what was said and what was answered; not the latest, nor the
    /// instruction.
    fn forget_oldest(&mut self) -> bool {
        let mut messages = self.messages.iter();
        let oldest = messages.position(|message| message["role"] != "system");
        let turn = oldest.map(|oldest| oldest..oldest + 2);
        let turn = turn.filter(|turn| turn.end < self.messages.len());
        turn.map(|turn| self.messages.drain(turn)).is_some()
    }

    /// What begins dim text, and what ends it.
    fn dim(&self) -> (&'static str, &'static str) {
        if self.colours { (DIM, PLAIN) } else { ("", "") }
    }

    /// Shows pieces until the answer ends or Ctrl-C stops it; dropping the stream tells the server.
    async fn show(&self, answer: &mut Answer, interrupts: &mut Interrupts) -> anyhow::Result<()> {
        loop {
            let pieces = tokio::select! {
                pieces = answer.next() => pieces?,
                () = interrupts.next() => None,
            };
            let Some(pieces) = pieces else { return Ok(()) };
            let mut shown = String::new();
            for Piece { text, is_accepted } in pieces {
                if self.colours && is_accepted {
                    shown.extend([GREEN, text.as_str(), PLAIN]);
                } else {
                    shown.push_str(&text);
                }
            }
            print(&shown)?;
        }
    }
}

/// The address without `/v1`, which other programs want in it, and with a scheme.
fn base_url(given: &str) -> String {
    let trimmed = given.trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
    let trimmed = trimmed.trim_end_matches('/');
    if trimmed.contains("://") {
        trimmed.to_owned()
    } else {
        format!("http://{trimmed}")
    }
}

/// Whether an address is one of this machine, as nobody else can use it.
fn is_this_machine(base: &str) -> bool {
    let url = Url::parse(base);
    let host = url
        .as_ref()
        .ok()
        .and_then(Url::host_str)
        .unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

async fn choose_model(client: &Client, base: &str, wanted: Option<&str>) -> anyhow::Result<String> {
    let url = format!("{base}/v1/models");
    let hint = || format!("no server answers at {base}: start one with `foretoken up`");
    let answer = client.get(&url).send().await.with_context(hint)?;
    if answer.status() == StatusCode::UNAUTHORIZED {
        bail!("the server at {base} wants another key: --api-key, or FORETOKEN_API_KEY");
    }
    let list: Value = answer
        .error_for_status()?
        .json()
        .await
        .context("not an OpenAI server")?;
    let empty = Vec::new();
    let models = list["data"].as_array().unwrap_or(&empty);
    let mut names = models.iter().filter_map(|model| model["id"].as_str());
    match wanted {
        None => match names.next() {
            Some(name) => Ok(name.to_owned()),
            None => bail!("the server at {base} has no model"),
        },
        Some(wanted) if names.clone().any(|name| name == wanted) => Ok(wanted.to_owned()),
        Some(wanted) => {
            let known: Vec<&str> = names.collect();
            Err(usage(format!(
                "--model is {wanted}; the server has {}",
                known.join(", ")
            )))
        }
    }
}

fn request(args: &Args, model: &str) -> Value {
    let mut request = json!({
        "model": model,
        "max_tokens": args.max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
        // For the text of each token.
        "logprobs": true,
        "foretoken": {},
    });
    if let Some(temperature) = args.temperature {
        request["temperature"] = temperature.into();
    }
    if let Some(policy) = args.policy {
        request["foretoken"]["policy"] = policy.name().into();
    }
    if let Some(lookahead) = args.lookahead {
        request["foretoken"]["lookahead"] = lookahead.into();
    }
    request
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_scheme_and_may_end_in_v1() {
        for given in [
            "127.0.0.1:8777",
            "http://127.0.0.1:8777/",
            "http://127.0.0.1:8777/v1",
            "127.0.0.1:8777/v1/",
        ] {
            assert_eq!(base_url(given), "http://127.0.0.1:8777", "{given}");
        }
        assert_eq!(base_url("https://host/api/v1"), "https://host/api");
    }

    #[test]
    fn only_addresses_of_this_machine_are_asked_without_a_proxy() {
        for url in [
            "http://127.0.0.1:1",
            "https://127.1.2.3",
            "http://[::1]:1",
            "http://LOCALHOST",
        ] {
            assert!(is_this_machine(url), "{url}");
        }
        for url in [
            "http://10.0.0.1",
            "https://localhost.example",
            "http://[2001:db8::1]",
            "://",
        ] {
            assert!(!is_this_machine(url), "{url}");
        }
    }
}
