use proptest::prelude::*;

use super::*;
use crate::agents::{Agent, ProgramVersion};

fn wanted(command: &str, version: &str) -> WantedHooks {
    let (agent, version) = (Agent::Claude.program(), ProgramVersion::from_output(version).unwrap());
    WantedHooks { agent, command: command.to_owned(), events: agent.known_events(Some(version)) }
}

fn newest() -> WantedHooks {
    wanted("/bin/foldlog hook event claude", "2.1.332")
}

/// Wanted hooks of two events, whose text is short.
fn two() -> WantedHooks {
    let mut wanted = newest();
    wanted.events.retain(|event| ["PreToolUse", "Stop"].contains(&event.name));
    wanted
}

fn installed(text: &str, wanted: &WantedHooks) -> String {
    with_hooks(Some(text), wanted).unwrap_or_else(|error| panic!("{error:?} in\n{text}"))
}

fn uninstalled(text: &str) -> String {
    match without_hooks(text, Agent::Claude.program()).unwrap_or_else(|error| panic!("{error:?} in\n{text}"))
    {
        Some(text) => text,
        None => panic!("the file would be removed:\n{text}"),
    }
}

#[test]
fn a_file_without_a_value_is_an_empty_object_and_becomes_the_same_again() {
    for text in ["", "\n", " \t\r\n  "] {
        assert_eq!(facts(text, Agent::Claude.program()), Ok(SettingsFacts::default()));
        assert_eq!(uninstalled(text), text);
        let with = installed(text, &two());
        assert_eq!(facts(&with, Agent::Claude.program()).unwrap().hooks.len(), 2, "{with}");
        assert_eq!(installed(&with, &two()), with);
        assert_eq!(uninstalled(&with), text, "{with}");
    }
    // A newline before an object that was there remains with it.
    for text in ["\n{}\n", "\n{\n}\n"] {
        assert_eq!(uninstalled(&installed(text, &two())), text);
    }
    assert!(with_hooks(Some("\u{a0}"), &two()).is_err(), "it is no whitespace of JSON");
}

#[test]
fn hooks_follow_the_indentation_and_the_hooks_of_others() {
    let text = r#"{
    // Mine.
    "model": "opus", // the best
    "hooks": {
        "Stop": [
            { "hooks": [{ "type": "command", "command": "say done" }] }
        ],
        "Notification": []
    },

    "env": {}
}
"#;
    let expected = r#"{
    // Mine.
    "model": "opus", // the best
    "hooks": {
        "Stop": [
            { "hooks": [{ "type": "command", "command": "say done" }] },
            {
                "hooks": [
                    {
                        "type": "command",
                        "command": "/bin/foldlog hook event claude",
                        "timeout": 30
                    }
                ]
            }
        ],
        "Notification": [],
        "PreToolUse": [
            {
                "matcher": "*",
                "hooks": [
                    {
                        "type": "command",
                        "command": "/bin/foldlog hook event claude",
                        "timeout": 30
                    }
                ]
            }
        ]
    },

    "env": {}
}
"#;
    let after = installed(text, &two());
    assert_eq!(after, expected);
    assert_eq!(uninstalled(&after), text);
}

#[test]
fn a_file_that_was_made_for_the_hooks_has_no_other_content() {
    let text = with_hooks(None, &newest()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        text.starts_with("{\n  \"hooks\": {\n    \"SessionStart\": [\n") && text.ends_with("\n  }\n}\n"),
        "{text}"
    );
    assert_eq!(value["hooks"].as_object().unwrap().len(), Agent::Claude.program().events.len());
    assert_eq!(without_hooks(&text, Agent::Claude.program()), Ok(None));
}

#[test]
fn a_moved_program_replaces_the_former_one_in_place() {
    let before = installed("{\n  \"a\": 1\n}\n", &newest());
    let moved =
        before.replace("/bin/foldlog hook event claude", "'/o ld/foldlog' hook event claude --strict");
    let again = installed(&moved, &newest());
    assert_eq!(again, before.replace("event claude", "event claude --strict"));
}

#[test]
fn a_hook_in_a_group_of_others_leaves_the_others() {
    let own = r#"{ "type": "command", "command": "foldlog hook event claude" }"#;
    let other = r#"{ "type": "command", "command": "other" }"#;
    let text = |handlers: &str| format!(r#"{{ "hooks": {{ "Stop": [{{ "hooks": [{handlers}] }}] }} }}"#);
    assert_eq!(uninstalled(&text(&format!("{own}, {other}"))), text(other));
    assert_eq!(uninstalled(&text(&format!("{other}, {own}"))), text(other));
    assert_eq!(uninstalled(&text(&format!("{other},{own} , {other}"))), text(&format!("{other}, {other}")));
}

#[test]
fn a_second_hook_of_an_event_is_removed() {
    let once = installed("{}", &two());
    let group = once.split("\"PreToolUse\": [").nth(1).unwrap().split(']').next().unwrap();
    let twice = once.replacen(group, &format!("{group}]}},{group}"), 1);
    assert_eq!(facts(&twice, Agent::Claude.program()).unwrap().hooks.len(), 3, "{twice}");
    assert_eq!(facts(&installed(&twice, &two()), Agent::Claude.program()).unwrap().hooks.len(), 2);
}

#[test]
fn a_line_comment_before_a_removed_hook_does_not_swallow_the_rest() {
    let hooks = installed("{}", &two());
    let hooks = hooks.trim_start_matches('{').trim_start();
    assert_eq!(uninstalled(&format!("{{ // foldlog\n  {hooks}")), "{ // foldlog\n  }");
}

#[test]
fn unusable_text_is_reported_with_its_line() {
    let error = |text: &str| {
        let error = with_hooks(Some(text), &newest()).unwrap_err();
        assert_eq!(without_hooks(text, Agent::Claude.program()).unwrap_err(), error);
        (error.line, error.reason)
    };
    let reported = |line: usize, reason: &str| (line, reason.to_owned());
    assert_eq!(error("{\n  \"a\": 1\n  \"b\": 2\n}").0, 2);
    assert_eq!(error("{\n  \"a\": tru\n}").0, 2);
    assert_eq!(error("\u{feff}{}").0, 1);
    assert_eq!(error("\n[]"), reported(2, "the settings are not an object"));
    assert_eq!(error("{\n\"hooks\": []}"), reported(2, "`hooks` is not an object"));
    assert_eq!(error("{\"hooks\": {},\n\"hooks\": {}}"), reported(2, "`hooks` occurs twice"));
    assert_eq!(error("{\"hooks\": {\n\"Stop\": {}}}"), reported(2, "`hooks.Stop` is not an array"));
    assert_eq!(error("{\"hooks\": {\"Stop\": [],\n\"Stop\": []}}"), reported(2, "`hooks.Stop` occurs twice"));
    for group in ["1", "{}", r#"{"hooks": {}}"#, r#"{"hooks": [1]}"#] {
        let text = format!("{{\"hooks\": {{\"Stop\": [\n{group}]}}}}");
        let reason = "an entry of `hooks.Stop` has no array `hooks` of objects";
        assert_eq!(error(&text), reported(2, reason), "{text}");
    }
    assert!(error(&"[".repeat(100_000)).1.contains("depth"));
}

/// A value, which [`Printer`] prints in many ways.
#[derive(Clone, Debug)]
enum Shape {
    Scalar(&'static str),
    Object(Vec<(String, Shape)>),
    Array(Vec<Shape>),
}

/// Prints shapes with whitespace, comments and commas that are chosen by numbers.
struct Printer<'a> {
    numbers: std::iter::Cycle<std::slice::Iter<'a, u8>>,
    text: String,
}

impl Printer<'_> {
    fn number(&mut self) -> usize {
        self.numbers.next().copied().unwrap_or_default().into()
    }

    fn space(&mut self) {
        const SPACES: [&str; 20] = [
            "",
            "",
            "",
            "",
            "",
            "\n  ",
            "\n  ",
            " ",
            "\n",
            "\n\n",
            "\t",
            "\n\t",
            "\r\n",
            "\r\n    ",
            "\r",
            "// comment\n",
            " // comment\r\n  ",
            "/* comment */",
            " /* two\n lines */ ",
            "\n  // comment\n\n  ",
        ];
        let number = self.number();
        self.text.push_str(SPACES[number % SPACES.len()]);
    }

    fn print(&mut self, shape: &Shape) {
        let unnamed: Vec<(Option<&str>, &Shape)> = match shape {
            Shape::Scalar(text) => return self.text.push_str(text),
            Shape::Object(all) => all.iter().map(|(name, value)| (Some(name.as_str()), value)).collect(),
            Shape::Array(all) => all.iter().map(|value| (None, value)).collect(),
        };
        let (open, close) = if matches!(shape, Shape::Object(_)) { ('{', '}') } else { ('[', ']') };
        self.text.push(open);
        self.space();
        for (index, (name, value)) in unnamed.iter().enumerate() {
            if let Some(name) = name {
                self.text.push_str(&format!("\"{name}\""));
                self.space();
                self.text.push(':');
                self.space();
            }
            self.print(value);
            self.space();
            if index + 1 < unnamed.len() || self.number().is_multiple_of(4) {
                self.text.push(',');
                self.space();
            }
        }
        self.text.push(close);
    }
}

fn value() -> impl Strategy<Value = Shape> {
    let scalar = prop::sample::select(vec!["1", "true", "null", r#""text""#, r#""a \" , } // b""#]);
    scalar.prop_map(Shape::Scalar).prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Shape::Array),
            prop::collection::btree_map("[a-c]", inner, 0..3)
                .prop_map(|all| Shape::Object(all.into_iter().collect())),
        ]
    })
}

fn property(name: &str, value: Shape) -> (String, Shape) {
    (name.to_owned(), value)
}

/// Hooks of others.
fn hooks() -> impl Strategy<Value = Shape> {
    let handler = Shape::Object(vec![
        property("type", Shape::Scalar(r#""command""#)),
        property("command", Shape::Scalar(r#""other hook event claude""#)),
    ]);
    let group = (any::<bool>(), prop::collection::vec(Just(handler), 0..3)).prop_map(|(has_matcher, all)| {
        let matcher = has_matcher.then(|| property("matcher", Shape::Scalar(r#""Bash""#)));
        Shape::Object(matcher.into_iter().chain([property("hooks", Shape::Array(all))]).collect())
    });
    let groups = prop::collection::vec(group, 0..3).prop_map(Shape::Array);
    let event = prop::sample::select(vec!["PreToolUse", "Stop", "SessionEnd", "Notification"]);
    prop::collection::btree_map(event.prop_map(str::to_owned), groups, 0..4)
        .prop_map(|all| Shape::Object(all.into_iter().collect()))
}

fn settings() -> impl Strategy<Value = String> {
    let before = prop::collection::btree_map("[a-c]", value(), 0..3);
    let after = prop::collection::btree_map("[d-f]", value(), 0..3);
    let numbers = prop::collection::vec(any::<u8>(), 1..200);
    (before, prop::option::of(hooks()), after, numbers).prop_map(|(before, hooks, after, numbers)| {
        let hooks = hooks.map(|hooks| property(HOOKS, hooks));
        let root = Shape::Object(before.into_iter().chain(hooks).chain(after).collect());
        let mut printer = Printer { numbers: numbers.iter().cycle(), text: String::new() };
        printer.space();
        printer.print(&root);
        printer.space();
        printer.text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn removing_installed_hooks_gives_the_same_bytes(text in settings()) {
        let wanted = newest();
        let with = installed(&text, &wanted);
        let mut events: Vec<String> = facts(&with, Agent::Claude.program()).unwrap().hooks.into_iter().map(|hook| hook.event).collect();
        events.sort();
        let mut expected: Vec<&str> = Agent::Claude.program().events.iter().map(|event| event.name).collect();
        expected.sort_unstable();
        prop_assert_eq!(events, expected);
        prop_assert_eq!(&installed(&with, &wanted), &with);
        prop_assert_eq!(&uninstalled(&with), &text, "by way of\n{}", with);
    }

    #[test]
    fn an_upgrade_a_downgrade_and_a_moved_program_leave_no_trace(text in settings()) {
        let old = wanted("/old/foldlog hook event claude", "2.0.44");
        let with = installed(&text, &old);
        let upgraded = installed(&with, &newest());
        prop_assert_eq!(&uninstalled(&upgraded), &text, "by way of\n{}", upgraded);
        prop_assert_eq!(&installed(&upgraded, &old), &with);
    }

    #[test]
    fn a_text_without_hooks_of_foldlog_remains(text in settings()) {
        prop_assert_eq!(uninstalled(&text), text);
    }
}
