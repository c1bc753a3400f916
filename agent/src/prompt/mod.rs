//! Prompts: sections of Markdown, the tools that the model may call, and the type of the expected
//! output.
//!
//! | module | contents |
//! |---|---|
//! | `section` | [`MarkdownSection`], its place ([`SectionPath`]), and its visibility ([`SectionVisibility`]) |
//! | `template` | the substitution of placeholders |
//! | `identity` | the digest by which a log recognizes a changed prompt |
//! | `output` | parses and checks the model's output |
//! | `schema` | decides which values a schema accepts |
//!
//! # Terms
//!
//! A prompt is *rendered* to the text of one system message. An *override* replaces the visibility
//! of a section; tools request overrides when the model wants to see more. The *identity* of a
//! prompt is its namespace, its key, and a digest of everything that does not depend on the
//! rendering.
//!
//! # Invariants
//!
//! 1. The identity of a prompt is computed without rendering, and does not depend on the values of
//!    parameters.
//! 2. The value of a parameter is plain text: a placeholder within it is not substituted.

mod error;
mod identity;
mod output;
mod schema;
mod section;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

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

/// Contains the instructions for a model, the tools that it may call, and the type of its output: a
/// text ([`Prompt::text`]), or JSON of the type `O` ([`Prompt::structured`]). It is cheap enough to
/// be built for each evaluation.
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
    /// Tools by name: those of the registry, and those that run elsewhere.
    tools: BTreeMap<String, ToolSpec>,
    output: Arc<Output<O>>,
}

/// Contains the result of rendering a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedPrompt {
    /// Text of the system message, in Markdown.
    pub text: String,
    /// Tools that the model may call, in ascending order of their names.
    pub tools: Vec<ToolSpec>,
    /// Expected output of the model; `None` for a text.
    pub output: Option<OutputSpec>,
    /// Visibility of each section, in the order of the sections. Children of a section that is not
    /// shown in full are left out.
    pub sections: Vec<(SectionPath, SectionVisibility)>,
}

impl Prompt<String> {
    /// Creates a prompt without sections whose output is the text of the model's last answer.
    pub fn text(namespace: impl Into<String>, key: impl Into<String>) -> Prompt<String> {
        Prompt::with_output(namespace.into(), key.into(), Output::text())
    }
}

impl<O: DeserializeOwned + JsonSchema> Prompt<O> {
    /// Creates a prompt without sections whose output is JSON of the type `O`.
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
            output: Arc::new(output),
        }
    }

    /// Appends a section.
    #[must_use]
    pub fn with_section(mut self, section: MarkdownSection) -> Prompt<O> {
        self.sections.push(section);
        self
    }

    /// Sets the tools that run in this process, and replaces those set before. A tool that no
    /// section names can be called at any time. A tool that sections name can be called while one
    /// of them is shown in full.
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

    /// Describes a tool to the model, and replaces an earlier tool of the same name. The tool
    /// either runs elsewhere, or is one of the registry with another description.
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

    /// Returns the prompt's name: `namespace:key`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.namespace, self.key)
    }

    /// Returns the tools that run in this process.
    pub fn tools(&self) -> &ToolRegistry {
        &self.registry
    }

    /// Returns the descriptions of all tools, whether or not a section shows them, in ascending
    /// order of their names.
    pub fn tool_specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values()
    }

    /// Returns the expected output of the model; `None` for a text.
    pub fn output_spec(&self) -> Option<&OutputSpec> {
        self.output.spec()
    }

    /// Renders the prompt. `overrides` take precedence over the visibility of a section.
    ///
    /// A section is rendered as its title in a heading, its template with placeholders substituted,
    /// and its child sections, whose headings are one level lower. Headings start at the second
    /// level. A section shown as its summary shows neither its children nor the tools that it
    /// names.
    ///
    /// # Errors
    ///
    /// A [`PromptError`] if two sections have the same path, if a key or a template is malformed,
    /// if a parameter, a summary or a tool is missing, or if an override names an unknown section.
    pub fn render(&self, overrides: &VisibilityOverrides) -> Result<RenderedPrompt, PromptError> {
        let mut rendering = section::Rendering::new(overrides);
        rendering.sections(&self.sections, None)?;
        let text = rendering.text()?;
        let section::Rendering { shown, named_tools, shown_tools, .. } = rendering;
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

    /// Returns the tools that the model may call under `overrides`, in ascending order of their
    /// names. Nothing is rendered.
    pub fn shown_tools(&self, overrides: &VisibilityOverrides) -> Vec<ToolSpec> {
        let (mut named, mut shown) = (BTreeSet::new(), BTreeSet::new());
        let mut around = vec![(self.sections.as_slice(), None::<SectionPath>, true)];
        while let Some((sections, parent, is_within_shown)) = around.pop() {
            for section in sections {
                let Ok(path) = SectionPath::from_parent(parent.as_ref(), &section.key) else { continue };
                let visibility = overrides.get(&path).copied().unwrap_or(section.visibility);
                let is_shown = is_within_shown && visibility == SectionVisibility::Full;
                named.extend(&section.tools);
                shown.extend(section.tools.iter().filter(|_| is_shown));
                around.push((section.children.as_slice(), Some(path), is_shown));
            }
        }
        let is_visible = |name: &String| !named.contains(name) || shown.contains(name);
        self.tools.values().filter(|tool| is_visible(&tool.name)).cloned().collect()
    }

    /// Returns the identity by which a log recognizes the prompt. Nothing is rendered. The digest
    /// covers templates, titles, keys, summaries, visibilities and the order of sections, the
    /// names, descriptions and schemas of all tools, and the output's schema. It does not cover
    /// parameters.
    pub fn identity(&self) -> PromptIdentity {
        PromptIdentity {
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            digest: identity::digest(&self.sections, self.tools.values(), self.output.spec()),
        }
    }

    /// Parses the text of a model's last answer as the prompt's output. A text is returned
    /// unchanged. JSON is parsed from the whole text or, if that is not JSON, from its only fenced
    /// code block.
    ///
    /// # Errors
    ///
    /// An [`OutputError`] if the text does not match the output's type, or contains a field that
    /// the type does not have. Its message may be shown to the model.
    pub fn parse_output(&self, text: &str) -> Result<O, OutputError> {
        self.output.parse(text)
    }

    /// Returns a JSON output without the fields that its type does not have. Any other text is
    /// returned unchanged.
    pub fn without_unknown_fields(&self, text: &str) -> String {
        self.output.without_unknown(text)
    }

    /// Registers the run-time state of all sections as resources. Tools can then access it. It is
    /// captured and rolled back like other resources if its section requires that.
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
            output: Arc::clone(&self.output),
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
