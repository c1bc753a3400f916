//! Prompts: their rendering, the tools of shown sections, the digest by which a log identifies a
//! prompt, and the accepted outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog::ResourceRegistry;
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog_agent::prompt::{
    MarkdownSection, Prompt, PromptError, SectionPath, SectionVisibility, VisibilityOverrides,
    overrides_from_json,
};
use foldlog_agent::provider::ToolSpec;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
struct Query {
    #[allow(dead_code)]
    query: String,
}

struct Search;

impl Tool for Search {
    const NAME: &'static str = "search";
    const DESCRIPTION: &'static str = "Search for information";
    type Parameters = Query;
    type Output = ();

    fn call(&self, _: Query, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok("nothing", ()))
    }
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Answer {
    verdict: String,
    #[serde(default)]
    findings: Vec<Finding>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Finding {
    #[schemars(range(min = 1))]
    line: u32,
    kind: Kind,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Kind {
    Bug { severity: u8 },
    Style,
}

fn section(key: &str, template: &str) -> MarkdownSection {
    MarkdownSection::new(key, template)
}

fn text(section: MarkdownSection) -> Result<String, PromptError> {
    Ok(Prompt::text("demo", "one").with_section(section).render(&VisibilityOverrides::new())?.text)
}

fn path(path: &str) -> SectionPath {
    path.parse().unwrap()
}

fn review() -> Prompt<Answer> {
    Prompt::structured("demo", "review")
        .with_section(
            section("task", "Research: ${topic}").with_title("Task").with_parameter("topic", "rust"),
        )
        .with_section(
            section("files", "Read what you need.")
                .with_title("Files")
                .with_summary("${count} files, not shown.")
                .with_parameter("count", 3)
                .with_child(section("list", "a.rs, b.rs").with_title("List"))
                .with_tools(["search"]),
        )
        .with_tools(ToolRegistry::new().with(Search))
}

#[test]
fn sections_become_headings_and_text_in_their_order_and_depth() {
    let rendered = review().render(&VisibilityOverrides::new()).unwrap();
    assert_eq!(
        rendered.text,
        "## Task\n\nResearch: rust\n\n## Files\n\nRead what you need.\n\n### List\n\na.rs, b.rs"
    );
    let shown: Vec<String> =
        rendered.sections.iter().map(|(path, shown)| format!("{path} {shown:?}")).collect();
    assert_eq!(shown, ["task Full", "files Full", "files/list Full"]);
    assert_eq!(rendered.output.unwrap().name, "Answer");
}

#[test]
fn a_summary_hides_what_is_within_the_section_and_the_tools_that_only_it_names() {
    let summary = VisibilityOverrides::from([(path("files"), SectionVisibility::Summary)]);
    let rendered = review().render(&summary).unwrap();
    assert_eq!(rendered.text, "## Task\n\nResearch: rust\n\n## Files\n\n3 files, not shown.");
    assert!(rendered.tools.is_empty(), "{:?}", rendered.tools);

    let shown = review().render(&VisibilityOverrides::new()).unwrap();
    assert_eq!(shown.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["search"]);

    let elsewhere = ToolSpec { name: "fetch".into(), description: "Fetch.".into(), parameters: json!({}) };
    let rendered = review().with_tool_spec(elsewhere).render(&summary).unwrap();
    assert_eq!(rendered.tools[0].name, "fetch", "a tool that no section names is always there");
}

#[test]
fn an_override_shows_a_hidden_section_and_hides_a_shown_one() {
    let prompt = Prompt::text("demo", "two")
        .with_section(section("a", "first").with_visibility(SectionVisibility::Hidden))
        .with_section(section("b", "second"));
    assert_eq!(prompt.render(&VisibilityOverrides::new()).unwrap().text, "second");
    let asked = overrides_from_json(&json!({"a": "full", "b": "hidden"})).unwrap();
    assert_eq!(prompt.render(&asked).unwrap().text, "first");
}

#[test]
fn overrides_that_no_section_fits_are_refused_and_so_are_other_forms_of_them() {
    let unknown = VisibilityOverrides::from([(path("gone"), SectionVisibility::Full)]);
    let error = review().render(&unknown).unwrap_err();
    assert_eq!(error, PromptError::NoSuchSection(path("gone")));
    for json in [json!({"files": "loud"}), json!({"": "full"}), json!({"a//b": "full"}), json!(["files"])] {
        let error = overrides_from_json(&json).unwrap_err();
        assert!(matches!(error, PromptError::InvalidOverrides(_)), "{json}: {error}");
    }
}

#[test]
fn a_dollar_is_itself_unless_it_begins_a_placeholder() {
    let parameters = [("a", json!("A")), ("n", json!(7)), ("list", json!([1, "x"])), ("no", json!(false))];
    for (template, expected) in [
        ("${a} costs $5, $HOME and $$ stay", "A costs $5, $HOME and $$ stay"),
        ("$${a}", "${a}"),
        ("$$${a}", "$A"),
        ("$$$${a}", "$${a}"),
        ("${a}${a}$", "AA$"),
        ("{a} }{ ${n} ${list} ${no}", "{a} }{ 7 [1,\"x\"] false"),
        ("\u{e9}${a}\u{1f980}", "\u{e9}A\u{1f980}"),
    ] {
        let filled =
            parameters.iter().fold(section("s", template), |s, (n, v)| s.with_parameter(*n, v.clone()));
        assert_eq!(text(filled).unwrap(), expected, "{template}");
    }
}

#[test]
fn what_a_parameter_says_is_never_read_as_a_template() {
    let injected =
        section("s", "${said}").with_parameter("said", "${secret}").with_parameter("secret", "key");
    assert_eq!(text(injected).unwrap(), "${secret}");
}

#[test]
fn a_prompt_that_cannot_be_rendered_says_which_section_is_wrong_and_what_to_do() {
    let bad = |template: &str| text(section("s", template)).unwrap_err();
    assert_eq!(bad("${a}"), PromptError::MissingParameter { section: path("s"), parameter: "a".into() });
    for malformed in ["${", "${}", "${a b}", "${1}", "${a", "${a${b}}"] {
        let error = bad(malformed);
        assert!(matches!(error, PromptError::InvalidTemplate { .. }), "{malformed}: {error}");
    }
    assert_eq!(
        text(section("s", "${a}").with_parameter("a", json!(null))).unwrap_err(),
        PromptError::MissingParameter { section: path("s"), parameter: "a".into() }
    );
    assert_eq!(
        text(section("s", "x").with_visibility(SectionVisibility::Summary)).unwrap_err(),
        PromptError::MissingSummary(path("s"))
    );
    let twice = section("s", "x").with_child(section("t", "")).with_child(section("t", ""));
    assert_eq!(text(twice).unwrap_err(), PromptError::DuplicateSection(path("s/t")));
    for key in ["", "a/b", "a b", "é", &"k".repeat(65)] {
        assert_eq!(text(section(key, "x")).unwrap_err(), PromptError::InvalidKey(key.into()));
    }
    let tool = text(section("s", "x").with_tools(["gone"])).unwrap_err();
    assert_eq!(tool, PromptError::NoSuchTool { section: path("s"), tool: "gone".into() });
    assert_eq!(
        tool.to_string(),
        "section `s` names tool `gone`, which the prompt does not have: add the tool"
    );
    let escaped = bad("${\u{1b}[31m}").to_string();
    assert!(
        escaped.contains("\\u{1b}[31m") && escaped.contains("write `${name}` for a parameter"),
        "{escaped}"
    );
}

#[test]
fn parameters_come_from_the_fields_of_a_value() {
    #[derive(serde::Serialize)]
    struct Request {
        path: &'static str,
        lines: u32,
    }
    let request = Request { path: "src/lib.rs", lines: 10 };
    let filled = section("s", "${path}: ${lines}").with_parameters(&request).unwrap();
    assert_eq!(text(filled).unwrap(), "src/lib.rs: 10");
    let error = section("s", "").with_parameters(&7).unwrap_err();
    assert!(matches!(error, PromptError::InvalidParameters { .. }), "{error}");
}

#[test]
fn identity_covers_all_that_a_prompt_is_and_nothing_that_it_is_rendered_with() {
    let digest = |prompt: Prompt<Answer>| prompt.identity().digest;
    let base = digest(review());
    assert_eq!(base, digest(review()), "the same prompt has the same digest");
    let identity = review().identity();
    assert_eq!((identity.namespace.as_str(), identity.key.as_str()), ("demo", "review"));

    let task = |value: &str| section("task", "${a}").with_parameter("a", value);
    let of = |section: MarkdownSection| Prompt::text("demo", "one").with_section(section).identity();
    assert_eq!(of(task("one")), of(task("two")), "values are no part of it");
    assert_eq!(of(task("one")), of(section("task", "${a}")), "nor is whether the prompt can be rendered");

    let tool = |name: &str, description: &str, schema: serde_json::Value| {
        review().with_tool_spec(ToolSpec {
            name: name.into(),
            description: description.into(),
            parameters: schema,
        })
    };
    let changed = [
        review().with_section(section("more", "")),
        review().with_tools(ToolRegistry::new()),
        tool("fetch", "", json!({})),
        tool("search", "In other words", json!({})),
        tool("search", "In other words", json!({"type": "object"})),
        tool("search", "In other words", json!({"type": ["object"]})),
    ];
    let mut digests: BTreeSet<[u8; 32]> = changed.into_iter().map(digest).collect();
    digests.insert(base);
    digests.insert(Prompt::<Finding>::structured("demo", "review").identity().digest);
    digests.insert(Prompt::text("demo", "review").identity().digest);
    assert_eq!(digests.len(), 9, "every change shows");
}

#[test]
fn no_two_prompts_run_together_in_the_digest() {
    let a = || section("a", "");
    let alike: Vec<Vec<MarkdownSection>> = vec![
        vec![],
        vec![a()],
        vec![section("ab", "c")],
        vec![section("a", "bc")],
        vec![section("a", "").with_title("bc")],
        vec![section("a", "b").with_title("c")],
        vec![section("a", "").with_summary("bc")],
        vec![section("a", "").with_summary("")],
        vec![a().with_visibility(SectionVisibility::Summary)],
        vec![a().with_visibility(SectionVisibility::Hidden)],
        vec![a().with_tools(["a"])],
        vec![a().with_tools(["a", "b"])],
        vec![a().with_tools(["ab"])],
        vec![a(), section("b", "")],
        vec![section("b", ""), a()],
        vec![a().with_child(section("b", ""))],
        vec![a().with_child(section("b", "")), section("c", "")],
        vec![a().with_child(section("b", "")).with_child(section("c", ""))],
        vec![a().with_child(section("b", "").with_child(section("c", "")))],
    ];
    let mut seen = BTreeMap::new();
    for sections in &alike {
        let prompt = sections.iter().cloned().fold(Prompt::text("n", "k"), Prompt::with_section);
        let earlier = seen.insert(prompt.identity().digest, sections);
        assert!(earlier.is_none(), "{earlier:?} and {sections:?}");
    }
}

/// Logs contain the digest, so a later version must compute the same one.
#[test]
fn the_digest_of_a_prompt_stays_what_it_was() {
    let section = section("task", "Do ${it}.").with_title("Task").with_summary("Short.").with_tools(["t"]);
    let parameters = json!({"z": [1, 2.5, null, true], "a": {"b": "é"}});
    let spec = ToolSpec { name: "t".into(), description: "Does.".into(), parameters };
    let prompt = Prompt::text("demo", "pinned").with_section(section).with_tool_spec(spec);
    let digest: String = prompt.identity().digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, by_hand());
}

/// Writes the documented bytes of the prompt above, independent of the library's code.
fn by_hand() -> String {
    let n = |number: u64| number.to_le_bytes().to_vec();
    let t = |text: &str| [n(text.len() as u64), text.as_bytes().to_vec()].concat();
    let section =
        [t("task"), t("Task"), t("Do ${it}."), vec![1], t("Short."), vec![0], n(1), t("t"), n(0)].concat();
    let list = [n(4), vec![3], t("1"), vec![3], t("2.5"), vec![0], vec![2]].concat();
    let a = [t("a"), vec![6], n(1), t("b"), vec![4], t("é")].concat();
    let schema = [vec![6], n(2), a, t("z"), vec![5], list].concat();
    let tool = [t("t"), t("Does."), schema].concat();
    let prompt = [t("foldlog.prompt.1"), n(1), section, n(1), tool, vec![0]].concat();
    blake3::hash(&prompt).to_string()
}

#[test]
fn a_text_prompt_takes_the_answer_as_it_is() {
    assert_eq!(Prompt::text("demo", "one").parse_output(" ```x``` \n").unwrap(), " ```x``` \n");
    assert!(Prompt::text("demo", "one").output_spec().is_none());
}

#[test]
fn json_is_taken_bare_and_from_one_code_block() {
    let json = r#"{"verdict": "good", "findings": [{"line": 3, "kind": {"kind": "bug", "severity": 2}}]}"#;
    let expected = Answer {
        verdict: "good".into(),
        findings: vec![Finding { line: 3, kind: Kind::Bug { severity: 2 } }],
    };
    for text in [
        json.to_owned(),
        format!("\n  {json}\n"),
        format!("```json\n{json}\n```"),
        format!("```\n{json}\n```\n"),
        format!("Here it is:\n\n````json\n{json}\n````\nThat is all."),
        format!("Cut off:\n```json\n{json}"),
    ] {
        assert_eq!(review().parse_output(&text).unwrap(), expected, "{text}");
    }
}

#[test]
fn an_output_of_another_form_is_refused_in_words_for_the_model() {
    for (text, reason) in [
        ("", "the answer is empty"),
        ("Sure!", "it is no JSON"),
        ("```\n{\n```", "its code block is no JSON"),
        ("```\n{}\n```\n```\n{}\n```", "it has 2 code blocks, and one is expected"),
        ("{}", "the value lacks the field `verdict`"),
        ("[]", r#"the value has the type "array" in place of "object""#),
        (r#"{"verdict": 1}"#, r#"`/verdict` has the type "number" in place of "string""#),
        (r#"{"verdict": "x", "mood": 1}"#, "the field `/mood` is unknown; known are: findings, verdict"),
        (r#"{"verdict": "x", "findings": [{"line": 0, "kind": {"kind": "style"}}]}"#, r#""minimum": 1"#),
        (r#"{"verdict": "x", "findings": [{"line": 1, "kind": {"kind": "typo"}}]}"#, "`/findings/0/kind`"),
        (
            r#"{"verdict": "x", "findings": [{"line": 1, "kind": {"kind": "style", "x": 1}}]}"#,
            "`/findings/0/kind/x`",
        ),
        (r#"{"verdict": "x"} {"verdict": "y"}"#, "it is no JSON: trailing characters"),
    ] {
        let error = review().parse_output(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}\n{error}");
        assert!(error.starts_with("The answer is not a valid `Answer`: "), "{error}");
        assert!(error.ends_with("and with nothing else."), "{error}");
    }
    let error = review().parse_output("{\"verdict\": \"x\", \"\u{1b}[2J\": 1}").unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn limits_of_numbers_texts_and_lists_are_kept_and_what_lies_at_a_limit_is_taken() {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Rated {
        #[schemars(range(min = 1, max = 5))]
        stars: i32,
        #[schemars(length(min = 2, max = 3))]
        name: String,
        #[schemars(length(min = 1, max = 2))]
        tags: Vec<(u8, bool)>,
    }
    let prompt = Prompt::<Rated>::structured("demo", "rated");
    let read = |stars: i32, name: &str, tags: serde_json::Value| {
        prompt.parse_output(&json!({"stars": stars, "name": name, "tags": tags}).to_string())
    };
    let one = || json!([[1, true]]);
    for (stars, name, tags) in [(1, "éé", one()), (5, "abc", json!([[1, true], [255, false]]))] {
        assert!(read(stars, name, tags.clone()).is_ok(), "{stars} {name} {tags}");
    }
    for (stars, name, tags) in [
        (0, "ab", one()),
        (6, "ab", one()),
        (1, "a", one()),
        (1, "abcd", one()),
        (1, "ab", json!([])),
        (1, "ab", json!([[1, true], [1, true], [1, true]])),
        (1, "ab", json!([[256, true]])),
        (1, "ab", json!([[1, 1]])),
    ] {
        assert!(read(stars, name, tags.clone()).is_err(), "{stars} {name} {tags}");
    }
}

#[test]
fn headings_end_at_the_lowest_level_that_markdown_has() {
    let nested =
        ["f", "e", "d", "c", "b", "a"].into_iter().fold(None, |child: Option<MarkdownSection>, key| {
            let own = section(key, "").with_title(key);
            Some(child.into_iter().fold(own, MarkdownSection::with_child))
        });
    assert_eq!(text(nested.unwrap()).unwrap(), "## a\n\n### b\n\n#### c\n\n##### d\n\n###### e\n\n###### f");
}

#[test]
fn the_schema_tells_the_model_to_leave_other_fields_out() {
    let prompt = review();
    let schema = &prompt.output_spec().unwrap().schema;
    assert_eq!(schema["additionalProperties"], json!(false));
    assert_eq!(schema["$defs"]["Finding"]["additionalProperties"], json!(false));
}

#[test]
fn fields_that_a_map_of_the_type_takes_are_not_extra() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Flattened {
        name: String,
        #[serde(flatten)]
        rest: BTreeMap<String, u32>,
    }
    let prompt = Prompt::<Flattened>::structured("demo", "map");
    let output = prompt.parse_output(r#"{"name": "x", "a": 1}"#).unwrap();
    assert_eq!(output.rest, BTreeMap::from([("a".to_owned(), 1)]));
    let prompt = Prompt::<BTreeMap<String, Option<Box<Answer>>>>::structured("demo", "map");
    assert!(prompt.parse_output(r#"{"x": null, "y": {"verdict": "z"}}"#).is_ok());
    assert!(prompt.parse_output(r#"{"y": {"verdict": "z", "w": 1}}"#).is_err());
}

#[test]
fn a_type_that_holds_itself_is_read_as_deep_as_json_goes() {
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Tree {
        children: Vec<Tree>,
    }
    let prompt = Prompt::<Tree>::structured("demo", "tree");
    let nested = |depth: usize| format!("{}{}", r#"{"children":["#.repeat(depth), "]}".repeat(depth));
    let tree = prompt.parse_output(&nested(60)).unwrap();
    assert_eq!(tree.children.len(), 1);
    assert!(prompt.parse_output(&nested(100_000)).is_err());
}

#[test]
fn run_time_state_of_sections_is_registered_as_resources_by_their_prompt() {
    let (budget, notes) = (Arc::new(BudgetTracker::default()), Arc::new(String::from("notes")));
    let child = section("budget", "").with_snapshotable(Arc::clone(&budget));
    let prompt = Prompt::text("demo", "state")
        .with_section(section("notes", "").with_resource(notes).with_child(child));

    let resources = prompt.register_resources(ResourceRegistry::builder()).build().unwrap();
    assert!(Arc::ptr_eq(&resources.get::<BudgetTracker>().unwrap(), &budget));
    assert_eq!(*resources.get::<String>().unwrap(), "notes");
    assert_eq!(resources.names(), ["budget"], "only this one is captured");

    let twice = prompt.register_resources(prompt.register_resources(ResourceRegistry::builder())).build();
    assert!(twice.is_err(), "a type is registered once");
}
