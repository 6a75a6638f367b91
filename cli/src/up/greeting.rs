//! What `up` prints once it serves: lines that a shell takes as they are.

use std::{env, fs, path::Path};

use super::state::State;

/// What to try first, with this executable as `program`. A key is not shown: clients have it in the
/// variable that `chat` reads too.
pub(super) fn greeting(state: &State, asks_for_keys: bool, program: &str) -> String {
    let State {
        url, model, policy, ..
    } = state;
    let name = serde_json::Value::from(model.as_str());
    let body = format!(
        "{{\"model\": {name}, \"prompt\": \"Question: Tom has 3 apples.\", \"max_tokens\": 64}}"
    );
    let (body, program) = (quoted(&body), plain_or_quoted(program));
    let (first, header) = if asks_for_keys {
        (
            "with one of the API keys exported as FORETOKEN_API_KEY:\n\n  ",
            "-H \"Authorization: Bearer $FORETOKEN_API_KEY\" \\\n    ",
        )
    } else {
        ("", "")
    };
    format!(
        "ready: {model} ({policy}) at {url}/v1\n\n  {first}\
         curl {url}/v1/completions -H 'Content-Type: application/json' \\\n    {header}\
         -d {body}\n\n  \
         {program} chat --url {url}\n"
    )
}

/// What a shell has to be told to run this executable: its name if that is found, or else its path.
pub(super) fn own_name() -> String {
    const NAME: &str = "foretoken";
    let Ok(own) = env::current_exe() else {
        return NAME.to_owned();
    };
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = env::split_paths(&path).map(|folder| folder.join(NAME));
    let first = found.find(|program| program.is_file());
    match first {
        Some(program) if is_same(&program, &own) => NAME.to_owned(),
        _ => own.display().to_string(),
    }
}

/// Whether both are one file, whatever links lead there.
fn is_same(a: &Path, b: &Path) -> bool {
    let [a, b] = [a, b].map(fs::canonicalize);
    matches!((a, b), (Ok(a), Ok(b)) if a == b)
}

/// A word of a shell's line that is exactly this text.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The same, without quotes where none are needed.
fn plain_or_quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn state(model: &str) -> State {
        State {
            pid: 1,
            url: "http://h:1".into(),
            model: model.into(),
            ready: true,
            policy: "Speculative".into(),
            services: Vec::new(),
        }
    }

    #[test]
    fn the_greeting_has_a_line_that_is_let_in_with_keys_and_without() {
        let open = "ready: m (Speculative) at http://h:1/v1\n\n  \
                    curl http://h:1/v1/completions -H 'Content-Type: application/json' \\\n    \
                    -d '{\"model\": \"m\", \"prompt\": \"Question: Tom has 3 apples.\", \
                    \"max_tokens\": 64}'\n\n  \
                    foretoken chat --url http://h:1\n";
        assert_eq!(greeting(&state("m"), false, "foretoken"), open);
        let keyed = open
            .replace(
                "  curl",
                "  with one of the API keys exported as FORETOKEN_API_KEY:\n\n  curl",
            )
            .replace(
                "-d '",
                "-H \"Authorization: Bearer $FORETOKEN_API_KEY\" \\\n    -d '",
            );
        assert_eq!(greeting(&state("m"), true, "foretoken"), keyed);
    }

    #[test]
    fn a_shell_takes_every_line_whatever_the_names_have_in_them() {
        let model = "Tom's \"$HOME\" `x`";
        let said = greeting(&state(model), false, "/a b/it's/foretoken");
        let (_, lines) = said.split_once("\n\n").unwrap();
        // Both programs are functions here, which say what they are given last.
        let script = lines.replace("'/a b/it'\\''s/foretoken'", "chat");
        let script =
            format!("curl() {{ shift 4; echo \"$1\"; }}; chat() {{ echo \"$3\"; }}\n{script}");
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let told = String::from_utf8(output.stdout).unwrap();
        let (body, url) = told.trim_end().rsplit_once('\n').unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((body["model"].as_str(), url), (Some(model), "http://h:1"));
    }

    #[test]
    fn an_executable_that_no_path_leads_to_is_called_by_its_own() {
        // That of the tests is not called foretoken.
        assert_eq!(
            own_name(),
            env::current_exe().unwrap().display().to_string()
        );
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("foretoken");
        std::os::unix::fs::symlink(env::current_exe().unwrap(), &link).unwrap();
        assert!(is_same(&link, &env::current_exe().unwrap()));
        assert!(!is_same(&link, folder.path()));
    }
}
