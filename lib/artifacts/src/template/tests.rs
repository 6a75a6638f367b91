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

#[test]
fn a_template_for_tools_may_be_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("additional_chat_templates");
    fs::create_dir(&folder).unwrap();
    fs::write(dir.path().join("chat_template.jinja"), "plain").unwrap();
    fs::write(folder.join("tool_use.jinja"), "tools").unwrap();
    fs::write(folder.join("rag.jinja"), "{% if what nobody asks for %}").unwrap();
    let template = ChatTemplate::load(dir.path()).unwrap();
    assert_eq!(template.render(&json!([]), &prompt()).unwrap(), "plain");
    let tools = RenderOptions {
        tools: Some(json!([{}])),
        ..prompt()
    };
    assert_eq!(template.render(&json!([]), &tools).unwrap(), "tools");
}

/// Whether each template gives what it gives with jinja2 3.1, as `transformers` sets that up.
fn assert_like_jinja2(table: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (source, meant) in table {
        let template = load(&[("chat_template.jinja", source)]).unwrap();
        let said = template.render(&json!([]), &prompt());
        if !matches!(&said, Ok(said) if said == meant) {
            wrong.push(format!("{source}: {said:?}, not {meant}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn methods_and_filters_of_jinja2_are_there() {
    assert_like_jinja2(&[
        (
            "{{ nothing | length }} {{ nothing | count }} {{ [1, 2] | length }}",
            "0 0 2",
        ),
        ("{{ 'a.b.c'.rsplit('.', 1) | join('|') }}", "a.b|c"),
        ("{{ 'a.b.c'.rsplit('.') | join('|') }}", "a|b|c"),
        ("{{ 'a.b.c'.rsplit('.', maxsplit=1) | join('|') }}", "a.b|c"),
        ("{{ 'a.b'.rsplit(sep='.') | join('|') }}", "a|b"),
        ("{{ '  a b  c '.rsplit(none, 1) | join('|') }}", "  a b|c"),
        ("{{ '  a b  c '.rsplit() | join('|') }}", "a|b|c"),
        ("{{ ' a '.rsplit(none, 0) | join('|') }}", " a"),
        ("{{ 'a b'.rsplit('.', 0) | join('|') }}", "a b"),
        (
            "{{ 'abab'.removeprefix('ab') }} {{ 'ab'.removeprefix('b') }}",
            "ab ab",
        ),
        (
            "{{ 'abab'.removesuffix('ab') }} {{ 'ab'.removesuffix('a') }}",
            "ab ab",
        ),
        (
            "{{ 'größe'.index('e') }} {{ ['a', 'b'].index('b') }} {{ [3, 4, 5][1:].index(5) }}",
            "4 1 1",
        ),
        (
            "{{ 'one, two_2 drei!' | wordcount }} {{ '' | wordcount }}",
            "3 0",
        ),
        (
            "{{ 'ab' | center(5) }}| {{ 'abc' | center(6) }}|",
            "  ab |  abc  |",
        ),
        (
            "{{ 'a' | center | length }} {{ 'abc' | center(2) }}",
            "80 abc",
        ),
    ]);
    for (source, problem) in [
        ("{{ 'a'.index('b') }}", "substring not found"),
        ("{{ [1].index(2) }}", "2 is not in list"),
        ("{{ 'a'.rsplit('') }}", "empty separator"),
        ("{{ none | length }}", "cannot calculate length"),
        ("{{ 'a' | center(99999999999) }}", "a width is at most"),
    ] {
        let template = load(&[("chat_template.jinja", source)]).unwrap();
        let said = template
            .render(&json!([]), &prompt())
            .unwrap_err()
            .to_string();
        assert!(said.contains(problem), "{source}: {said}");
    }
}

#[test]
fn tests_decide_as_in_jinja2() {
    assert_like_jinja2(&[
        (
            "{{ strftime_now is callable }} {{ 'a' is callable }} {{ {} is callable }}",
            "True False False",
        ),
        (
            "{{ raise_exception is callable }} {{ nothing is callable }}",
            "True True",
        ),
        (
            "{{ none is iterable }} {{ 1 is iterable }} {{ 'a' is iterable }}",
            "False False True",
        ),
        (
            "{{ [] is iterable }} {{ {} is iterable }} {{ nothing is iterable }}",
            "True True True",
        ),
        (
            "{{ 'a' is sequence }} {{ [] is sequence }} {{ {} is sequence }}",
            "True True True",
        ),
        (
            "{{ 1 is sequence }} {{ none is sequence }} {{ nothing is sequence }}",
            "False False True",
        ),
        (
            "{{ range(2) is sequence }} {{ [1, 2][1:] is sequence }}",
            "True True",
        ),
    ]);
}

#[test]
fn numbers_and_json_are_set_as_in_python() {
    assert_like_jinja2(&[
        (
            "{{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5 }} {{ 2.0 }}",
            "1e+20 1e+16 1000000000000000.0 1.5 2.0",
        ),
        (
            "{{ 0.00001 }} {{ 0.0001 }} {{ -1.25e-7 }} {{ 0.0 }} {{ 3 }}",
            "1e-05 0.0001 -1.25e-07 0.0 3",
        ),
        (
            "{{ 1e20 | tojson }} {{ [0.00001, 2.0, 3] | tojson }}",
            "1e+20 [1e-05, 2.0, 3]",
        ),
        ("{{ [1e20] | tojson(indent=1) }}", "[\n 1e+20\n]"),
        (
            "{{ [[], {}, {'a': [1, 2]}] | tojson(indent=2) }}",
            "[\n  [],\n  {},\n  {\n    \"a\": [\n      1,\n      2\n    ]\n  }\n]",
        ),
        (
            "{{ {'a': 1, 'b': 2} | tojson(indent=1, separators=(';', '=')) }}",
            "{\n \"a\"=1;\n \"b\"=2\n}",
        ),
    ]);
}
