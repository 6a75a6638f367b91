//! Asks services for their metrics, and listens to their rounds.
//!
//! On a thread of its own, so that a screen can be drawn whatever the network does.

use std::{
    collections::BTreeMap,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use foretoken_service::rounds::Line;
use reqwest::{Client, StatusCode};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    places::{Place, Places},
    scrape::Totals,
};
use crate::{child, stop::Signals};

/// How long a service may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before rounds are listened to again.
const PAUSE: Duration = Duration::from_secs(1);
/// What may wait for whoever prints it, who may wait in turn for whoever reads that. More waits with the
/// services, which tell what they had no room for.
pub(super) const MOST: usize = 4096;
/// Longest line of a feed; more is no line of ours.
const MAX_LINE: usize = 1 << 20;

/// What became known.
#[derive(Debug)]
pub(super) enum News {
    /// These are the services now.
    Places(Vec<Place>),
    /// Metrics of the service at this URL, at that time.
    Scraped(String, Totals, Instant),
    /// An event of the service at this URL.
    Told(String, Line),
    /// The service at this URL cannot be asked.
    Failed(String, String),
    /// Time to stop.
    Stop,
}

/// Watches `places` from now on, until nobody hears `news` any more.
pub(super) fn start(
    places: Places,
    every: Duration,
    news: mpsc::SyncSender<News>,
) -> anyhow::Result<()> {
    // Before there is anything to see: whoever sees it may tell it to end.
    let mut signals = Signals::new()?;
    let runtime = child::small_runtime()?;
    let client = Client::builder()
        .connect_timeout(PATIENCE)
        .no_proxy()
        .build()
        .context("cannot set up the HTTP client")?;
    thread::Builder::new()
        .name("foretoken-top".into())
        .spawn(move || runtime.block_on(watch(&places, every, &client, &mut signals, &news)))
        .context("cannot start a thread")?;
    Ok(())
}

async fn watch(
    places: &Places,
    every: Duration,
    client: &Client,
    signals: &mut Signals,
    news: &mpsc::SyncSender<News>,
) {
    let mut tasks: BTreeMap<String, [JoinHandle<()>; 2]> = BTreeMap::new();
    let mut known = Vec::new();
    let mut ticks = interval(every);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = signals.any() => { let _ = news.send(News::Stop); }
        }
        let now = places.now();
        if now == known {
            continue;
        }
        tasks.retain(|url, tasks| {
            let stays = now.iter().any(|place| place.url == *url);
            if !stays {
                tasks.iter().for_each(JoinHandle::abort);
            }
            stays
        });
        if news.send(News::Places(now.clone())).is_err() {
            return;
        }
        for Place { url, .. } in &now {
            tasks.entry(url.clone()).or_insert_with(|| {
                let ask = ask(client.clone(), url.clone(), every, news.clone());
                let listen = listen(client.clone(), url.clone(), news.clone());
                [tokio::spawn(ask), tokio::spawn(listen)]
            });
        }
        known = now;
    }
}

/// Asks for metrics again and again.
async fn ask(client: Client, url: String, every: Duration, news: mpsc::SyncSender<News>) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let item = match metrics(&client, &url).await {
            Ok(text) => News::Scraped(url.clone(), Totals::parse(&text), Instant::now()),
            Err(error) => News::Failed(url.clone(), chain(&error)),
        };
        if news.send(item).is_err() {
            return;
        }
    }
}

async fn metrics(client: &Client, url: &str) -> reqwest::Result<String> {
    let request = client.get(format!("{url}/metrics")).timeout(PATIENCE);
    request.send().await?.error_for_status()?.text().await
}

/// Listens to rounds, again if need be. A service without any (a router) is left in peace.
async fn listen(client: Client, url: String, news: mpsc::SyncSender<News>) {
    loop {
        let answer = client.get(format!("{url}/rounds")).send().await;
        if let Ok(mut answer) = answer {
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return,
                _ => {
                    sleep(PAUSE).await;
                    continue;
                }
            }
            let mut lines = Vec::new();
            while let Ok(Some(chunk)) = answer.chunk().await {
                lines.extend_from_slice(&chunk);
                if !tell(&mut lines, &url, &news) {
                    return;
                }
            }
        }
        // Why it does not answer is said by whoever asks for its metrics.
        sleep(PAUSE).await;
    }
}

/// Tells the whole lines, and keeps the rest; says whether anybody heard it.
fn tell(lines: &mut Vec<u8>, url: &str, news: &mpsc::SyncSender<News>) -> bool {
    let end = lines.iter().rposition(|&byte| byte == b'\n');
    for line in lines[..end.unwrap_or(0)].split(|&byte| byte == b'\n') {
        // What a later version tells beside is of no use here.
        if let Ok(line) = serde_json::from_slice(line)
            && news.send(News::Told(url.to_owned(), line)).is_err()
        {
            return false;
        }
    }
    lines.drain(..end.map_or(0, |end| end + 1));
    if lines.len() > MAX_LINE {
        lines.clear();
    }
    true
}

/// An error and its causes, without the address that all of them repeat.
fn chain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".into();
    }
    if let Some(status) = error.status() {
        return format!("answers {status}: is this where it shows its metrics?");
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_when_they_are_whole() {
        let (news, inbox) = mpsc::sync_channel(MOST);
        let mut lines = Vec::new();
        let text = "{\"missed\":{\"events\":3}}\nnonsense\n{\"missed\":{\"events\":4}}\n";
        for half in [&text[..10], &text[10..30], &text[30..]] {
            lines.extend_from_slice(half.as_bytes());
            assert!(tell(&mut lines, "u", &news));
        }
        let told: Vec<_> = inbox
            .try_iter()
            .map(|news| match news {
                News::Told(_, Line::Missed { events }) => events,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(told, [3, 4]);
        assert!(lines.is_empty());
    }
}
