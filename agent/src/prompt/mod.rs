//! Prompts: sections of Markdown, the tools that the model may call, and the type of the output that it has to give.
//!
//! | module | holds |
//! |---|---|
//! | `section` | [`MarkdownSection`], where it stands ([`SectionPath`]), and how much of it is shown ([`SectionVisibility`]) |
//! | `template` | how placeholders are filled in |
//! | `identity` | the digest by which a log tells whether a prompt was changed |
//! | `output` | reading and checking the model's output |
//! | `schema` | which values a schema accepts |
//!
//! # Terms
//!
//! A prompt is *rendered* to the text of one system message. An *override* says how much of a section is shown in place
//! of what the section itself says; tools ask for overrides when the model wants to see more. The *identity* of a
//! prompt is its namespace, its key, and a digest of everything that stays the same whatever it is rendered with.
//!
//! # Invariants
//!
//! 1. A prompt's identity is found without rendering it, and depends on no parameter's value.
//! 2. A parameter's value is text: a placeholder within it is not filled in.

mod error;
mod identity;
mod output;
mod schema;
mod section;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use foldlog::conversation::PromptIdentity;
use foldlog::tools::ToolRegistry;
use foldlog::tools::resources::ResourceRegistryBuilder;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub use error::PromptError;
pub use output::OutputError;
pub use section::{
    MarkdownSection, SectionPath, SectionVisibility, VisibilityOverrides, overrides_from_json,
};

use crate::provider::{OutputSpec, ToolSpec};
use output::Output;

/// Holds what a model is told, which tools it may call, and which output it has to give: a text ([`Prompt::text`]), or
/// JSON of the type `O` ([`Prompt::structured`]). Cheap enough to make anew for each evaluation.
///
/// ```
/// use foldlog_agent::prompt::{MarkdownSection, Prompt};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Review {
///     verdict: String,
/// }
///
/// let prompt = Prompt::<Review>::structured("demo", "review")
///     .with_section(
///         MarkdownSection::new("task", "Review ${path}.").with_title("Task").with_parameter("path", "src/lib.rs"),
///     );
/// assert_eq!(prompt.render(&Default::default())?.text, "## Task\n\nReview src/lib.rs.");
/// assert_eq!(prompt.parse_output(r#"{"verdict": "good"}"#)?.verdict, "good");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Prompt<O = String> {
    namespace: String,
    key: String,
    sections: Vec<MarkdownSection>,
    registry: ToolRegistry,
    /// Tools by their names: those of the registry, and those that run elsewhere.
    tools: BTreeMap<String, ToolSpec>,
    output: Output<O>,
}

/// Holds what a prompt was rendered to.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedPrompt {
    /// Text of the system message: Markdown.
    pub text: String,
    /// Tools that the model may call, in ascending order of their names.
    pub tools: Vec<ToolSpec>,
    /// Output that the model has to give; `None` for a text.
    pub output: Option<OutputSpec>,
    /// How much of each section was shown, in the order of the sections. Those within a section that is not shown in
    /// full are left out.
    pub sections: Vec<(SectionPath, SectionVisibility)>,
}

impl Prompt<String> {
    /// Makes a prompt without sections whose output is the text of the model's last answer.
    pub fn text(namespace: impl Into<String>, key: impl Into<String>) -> Prompt<String> {
        Prompt::with_output(namespace.into(), key.into(), Output::text())
    }
}

impl<O: DeserializeOwned + JsonSchema> Prompt<O> {
    /// Makes a prompt without sections whose output is JSON of the type `O`.
    pub fn structured(namespace: impl Into<String>, key: impl Into<String>) -> Prompt<O> {
        Prompt::with_output(namespace.into(), key.into(), Output::json())
    }
}

impl<O> Prompt<O> {
    fn with_output(namespace: String, key: String, output: Output<O>) -> Prompt<O> {
        Prompt {
            namespace,
            key,
            sections: Vec::new(),
            registry: ToolRegistry::new(),
            tools: BTreeMap::new(),
            output,
        }
    }

    /// Adds a section behind the others.
    #[must_use]
    pub fn with_section(mut self, section: MarkdownSection) -> Prompt<O> {
        self.sections.push(section);
        self
    }

    /// Sets the tools that run in this process, in place of those that were set before. The model may call a tool that
    /// no section names at any time, and one that sections name while one of them is shown in full.
    #[must_use]
    pub fn with_tools(mut self, registry: ToolRegistry) -> Prompt<O> {
        for name in self.registry.names() {
            self.tools.remove(name);
        }
        for name in registry.names() {
            if let Ok((description, parameters)) = registry.describe(name) {
                let spec =
                    ToolSpec { name: name.to_owned(), description: description.to_owned(), parameters };
                self.tools.insert(spec.name.clone(), spec);
            }
        }
        self.registry = registry;
        self
    }

    /// Describes a tool to the model, in place of an earlier one of the same name: one that runs elsewhere, or one of
    /// the registry in other words.
    #[must_use]
    pub fn with_tool_spec(mut self, spec: ToolSpec) -> Prompt<O> {
        self.tools.insert(spec.name.clone(), spec);
        self
    }

    /// Returns the namespace of the prompt.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the key of the prompt within its namespace.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the prompt's name: namespace and key, with a colon between them.
    pub fn name(&self) -> String {
        format!("{}:{}", self.namespace, self.key)
    }

    /// Returns the sections in their order.
    pub fn sections(&self) -> &[MarkdownSection] {
        &self.sections
    }

    /// Returns the tools that run in this process.
    pub fn tools(&self) -> &ToolRegistry {
        &self.registry
    }

    /// Returns the descriptions of all tools, whether a section shows them or not, in ascending order of their names.
    pub fn tool_specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values()
    }

    /// Returns the output that the model has to give; `None` for a text.
    pub fn output_spec(&self) -> Option<&OutputSpec> {
        self.output.spec()
    }

    /// Renders the prompt, each section as `overrides` says, else as the section says itself.
    ///
    /// A section is its title as a heading, and its template with the placeholders filled in, and then the sections
    /// within it, whose headings are one level lower. Headings begin at the second level. A section that is shown as its
    /// summary shows neither the sections within it nor the tools that it names.
    ///
    /// # Errors
    ///
    /// A [`PromptError`] if two sections have one path, if a key or a template is malformed, if a parameter, a summary
    /// or a tool is missing, or if an override names a section that the prompt does not have.
    pub fn render(&self, overrides: &VisibilityOverrides) -> Result<RenderedPrompt, PromptError> {
        let mut rendering = section::Rendering::new(overrides);
        rendering.sections(&self.sections, None)?;
        let section::RenderedSections { text, shown, named_tools, shown_tools } = rendering.finish()?;
        if let Some((section, tool)) =
            named_tools.iter().find(|(_, tool)| !self.tools.contains_key(tool.as_str()))
        {
            return Err(PromptError::NoSuchTool { section: section.clone(), tool: tool.clone() });
        }
        let named: BTreeSet<&str> = named_tools.iter().map(|(_, tool)| tool.as_str()).collect();
        let is_visible = |name: &str| !named.contains(name) || shown_tools.contains(name);
        Ok(RenderedPrompt {
            text,
            tools: self.tools.values().filter(|tool| is_visible(&tool.name)).cloned().collect(),
            output: self.output.spec().cloned(),
            sections: shown,
        })
    }

    /// Returns the tools that the model may call while the sections are shown as `overrides` says, in ascending order of
    /// their names. Nothing is rendered.
    pub fn shown_tools(&self, overrides: &VisibilityOverrides) -> Vec<ToolSpec> {
        let (mut named, mut shown) = (BTreeSet::new(), BTreeSet::new());
        let mut around = vec![(self.sections.as_slice(), None::<SectionPath>, true)];
        while let Some((sections, parent, is_within_shown)) = around.pop() {
            for section in sections {
                let keys = parent.iter().flat_map(SectionPath::keys).map(String::as_str);
                let Ok(path) = SectionPath::new(keys.chain([section.key()])) else { continue };
                let visibility = overrides.get(&path).copied().unwrap_or(section.visibility());
                let is_shown = is_within_shown && visibility == SectionVisibility::Full;
                named.extend(section.tools());
                shown.extend(section.tools().filter(|_| is_shown));
                around.push((section.children(), Some(path), is_shown));
            }
        }
        let is_visible = |name: &str| !named.contains(name) || shown.contains(name);
        self.tools.values().filter(|tool| is_visible(&tool.name)).cloned().collect()
    }

    /// Returns by what a log knows the prompt again. Nothing is rendered: the digest covers templates, titles, keys,
    /// summaries, visibilities and the order of sections, the names, descriptions and schemas of all tools, and the
    /// output's schema. It covers no parameters.
    pub fn identity(&self) -> PromptIdentity {
        PromptIdentity {
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            digest: identity::digest(&self.sections, self.tools.values(), self.output.spec()),
        }
    }

    /// Reads the text of a model's last answer as the prompt's output. A text is returned as it is. JSON is read from
    /// the whole text or, if that is no JSON, from the only fenced code block in it.
    ///
    /// # Errors
    ///
    /// An [`OutputError`] if the text is not of the output's type, or holds a field that the type does not have. Its
    /// message is fit to be shown to the model.
    pub fn parse_output(&self, text: &str) -> Result<O, OutputError> {
        self.output.parse(text)
    }

    /// Returns an output in JSON without the fields that its type does not have, and any other text as it is.
    pub fn without_unknown_fields(&self, text: &str) -> String {
        self.output.without_unknown(text)
    }

    /// Registers the run-time state of all sections as resources, so that tools find it, and so that it is captured and
    /// rolled back like any other resource if its section says so.
    pub fn register_resources(&self, builder: ResourceRegistryBuilder) -> ResourceRegistryBuilder {
        self.sections.iter().fold(builder, |builder, section| section.register_resources(builder))
    }
}

impl<O> Clone for Prompt<O> {
    fn clone(&self) -> Prompt<O> {
        Prompt {
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            sections: self.sections.clone(),
            registry: self.registry.clone(),
            tools: self.tools.clone(),
            output: self.output.clone(),
        }
    }
}

impl<O> fmt::Debug for Prompt<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt")
            .field("identity", &self.identity())
            .field("sections", &self.sections)
            .field("tools", &self.tools.keys())
            .finish_non_exhaustive()
    }
}
