use std::fs;

use serde_json::json;

use super::*;

/// A template that uses what real ones use.
const CHATML: &str = "\
{%- if tools %}
    {{- '<tools>' + (tools | tojson) + '</tools>' }}
{%- endif %}
{% for message in messages %}
    {% if message.role not in ['system', 'user', 'assistant'] %}
        {{ raise_exception('unknown role ' + message.role) }}
    {% endif %}
    {% generation %}
    {{- '<|' + message['role'].upper() + '|>' + message.content | trim + '\\n' -}}
    {% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|ASSISTANT|>' -}}
{% endif %}";

fn load(files: &[(&str, &str)]) -> Result<ChatTemplate, TemplateError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    ChatTemplate::load(dir.path())
}

fn config(template: &serde_json::Value) -> String {
    json!({"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}})
        .to_string()
}

fn prompt() -> RenderOptions {
    RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    }
}

#[test]
fn blocks_are_trimmed_and_python_methods_work() {
    let template = load(&[("tokenizer_config.json", &config(&json!(CHATML)))]).unwrap();
    let messages =
        json!([{"role": "system", "content": " be brief "}, {"role": "user", "content": "hi"}]);
    let text = template.render(&messages, &prompt()).unwrap();
    assert_eq!(text, "<|SYSTEM|>be brief\n<|USER|>hi\n<|ASSISTANT|>");
    assert!(!template.is_default() && !template.wants_special_tokens());
    let without = template
        .render(&messages, &RenderOptions::default())
        .unwrap();
    assert!(!without.contains("ASSISTANT"));
}

#[test]
fn a_developer_is_the_system_for_templates_that_know_none() {
    let messages =
        json!([{"role": "developer", "content": "brief"}, {"role": "user", "content": "hi"}]);
    let older = load(&[("chat_template.jinja", CHATML)]).unwrap();
    let text = older.render(&messages, &prompt()).unwrap();
    assert_eq!(text, "<|SYSTEM|>brief\n<|USER|>hi\n<|ASSISTANT|>");
    let newer = CHATML.replace("'user'", "'user', 'developer'");
    let newer = load(&[("chat_template.jinja", &newer)]).unwrap();
    let text = newer.render(&messages, &prompt()).unwrap();
    assert_eq!(text, "<|DEVELOPER|>brief\n<|USER|>hi\n<|ASSISTANT|>");
}

#[test]
fn the_template_can_refuse_messages_in_its_own_words() {
    let template = load(&[("chat_template.jinja", CHATML)]).unwrap();
    let error = template
        .render(&json!([{"role": "robot", "content": "x"}]), &prompt())
        .unwrap_err();
    assert!(
        matches!(&error, RenderError::Refused(m) if m == "unknown role robot"),
        "{error}"
    );
    assert!(error.to_string().contains("unknown role robot"));
}

#[test]
fn json_is_written_as_python_writes_it() {
    let template = load(&[("chat_template.jinja", CHATML)]).unwrap();
    let tools = json!([{"a": "größe<>", "n": [1, 2]}]);
    let options = RenderOptions {
        tools: Some(tools),
        ..RenderOptions::default()
    };
    let text = template.render(&json!([]), &options).unwrap();
    assert_eq!(text, r#"<tools>[{"a": "größe<>", "n": [1, 2]}]</tools>"#);
    let pretty = load(&[("chat_template.jinja", "{{ messages | tojson(indent=2) }}")]).unwrap();
    assert_eq!(
        pretty.render(&json!([{"a": 1}]), &prompt()).unwrap(),
        "[\n  {\n    \"a\": 1\n  }\n]"
    );
    let dense = "{{ {'b': [1, 2], 'a': 3} | tojson(separators=(',', ':')) }}\
                 {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }}";
    let dense = load(&[("chat_template.jinja", dense)]).unwrap();
    assert_eq!(
        dense.render(&json!([]), &prompt()).unwrap(),
        r#"{"b":[1,2],"a":3}{"a": {"c": 2, "d": 1}, "b": 1}"#
    );
}

#[test]
fn special_tokens_and_the_callers_variables_are_there() {
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ enable_thinking }}";
    let template = load(&[("tokenizer_config.json", &config(&json!(source)))]).unwrap();
    let mut options = prompt();
    options
        .variables
        .insert("enable_thinking".into(), json!(false));
    let text = template
        .render(&json!([{"role": "user", "content": "x"}]), &options)
        .unwrap();
    assert_eq!(text, "<s>x</s>False");
}

#[test]
fn of_named_templates_the_default_and_the_one_for_tools_are_used() {
    let list = json!([
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]);
    let template = load(&[("tokenizer_config.json", &config(&list))]).unwrap();
    assert_eq!(template.render(&json!([]), &prompt()).unwrap(), "plain");
    let tools = RenderOptions {
        tools: Some(json!([{}])),
        ..prompt()
    };
    assert_eq!(template.render(&json!([]), &tools).unwrap(), "tools");
    let single = json!([{"name": "rag", "template": "only"}]);
    let template = load(&[("tokenizer_config.json", &config(&single))]).unwrap();
    assert_eq!(template.render(&json!([]), &prompt()).unwrap(), "only");
}

#[test]
fn a_file_of_its_own_comes_before_the_configuration() {
    let inline = config(&json!("inline"));
    for (name, text) in [
        ("chat_template.jinja", "file"),
        ("chat_template.json", r#"{"chat_template": "file"}"#),
    ] {
        let template = load(&[("tokenizer_config.json", &inline), (name, text)]).unwrap();
        assert_eq!(
            template.render(&json!([]), &prompt()).unwrap(),
            "file",
            "{name}"
        );
    }
}

#[test]
fn a_model_without_a_template_gets_the_contents_joined() {
    let template = load(&[]).unwrap();
    assert!(template.is_default() && template.wants_special_tokens());
    let messages = json!([
        {"role": "system", "content": "Question: 1 + 1?"},
        {"role": "user", "content": "Answer:"},
    ]);
    assert_eq!(
        template.render(&messages, &prompt()).unwrap(),
        "Question: 1 + 1?\nAnswer:"
    );
}

#[test]
fn the_date_is_written_by_format_and_bad_formats_are_errors() {
    let template = load(&[("chat_template.jinja", "{{ strftime_now('%d %b %Y') }}")]).unwrap();
    let text = template.render(&json!([]), &prompt()).unwrap();
    let parts: Vec<&str> = text.split(' ').collect();
    assert!(
        parts.len() == 3 && parts[2].len() == 4 && parts[2].starts_with('2'),
        "{text}"
    );
    let bad = load(&[("chat_template.jinja", "{{ strftime_now('%Q%') }}")]).unwrap();
    assert!(bad.render(&json!([]), &prompt()).is_err());
}

#[test]
fn broken_and_endless_templates_are_errors() {
    let error = load(&[("chat_template.jinja", "a\n{% if %}")])
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("does not parse") && error.contains("line 2"),
        "{error}"
    );
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                   {% endfor %}{% endfor %}{% endfor %}";
    let template = load(&[("chat_template.jinja", endless)]).unwrap();
    let error = template.render(&json!([]), &prompt()).unwrap_err();
    assert!(matches!(error, RenderError::Failed(_)), "{error}");
    let error = load(&[("tokenizer_config.json", "{")])
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}
