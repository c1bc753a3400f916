use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use foldlog::tools::resources::{ResourceRegistryBuilder, Snapshotable};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PromptError, template};

/// Longest key of a section, in characters.
const KEY_MAX: usize = 64;
/// Heading level of the outermost sections, and the lowest level in Markdown.
const HEADINGS: (usize, usize) = (2, 6);

/// Selects how much of a section is shown to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SectionVisibility {
    /// The whole section, including its children.
    #[default]
    Full,
    /// The summary, in place of the section's text and its children.
    Summary,
    /// Nothing.
    Hidden,
}

/// Identifies a section by its key and the keys of its ancestors, outermost first. As text, and in
/// JSON, the keys are separated by `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SectionPath(Vec<String>);

/// Visibility of sections, in place of their own. An override has no effect within a section that
/// is not shown in full.
pub type VisibilityOverrides = BTreeMap<SectionPath, SectionVisibility>;

impl SectionPath {
    /// Creates the path of a section from its keys, outermost first.
    ///
    /// # Errors
    ///
    /// [`PromptError::InvalidKey`] if a key is malformed, or if there is none.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Result<SectionPath, PromptError> {
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        if keys.is_empty() {
            return Err(PromptError::InvalidKey(String::new()));
        }
        match keys.iter().find(|key| !is_key(key)) {
            Some(key) => Err(PromptError::InvalidKey(key.clone())),
            None => Ok(SectionPath(keys)),
        }
    }

    /// Returns the keys, outermost first.
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    pub(super) fn from_parent(parent: Option<&SectionPath>, key: &str) -> Result<SectionPath, PromptError> {
        let around = parent.map_or(&[][..], SectionPath::keys);
        SectionPath::new(around.iter().map(String::as_str).chain([key]))
    }
}

impl fmt::Display for SectionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

impl FromStr for SectionPath {
    type Err = PromptError;

    fn from_str(path: &str) -> Result<SectionPath, PromptError> {
        SectionPath::new(path.split('/'))
    }
}

impl TryFrom<String> for SectionPath {
    type Error = PromptError;

    fn try_from(path: String) -> Result<SectionPath, PromptError> {
        path.parse()
    }
}

impl From<SectionPath> for String {
    fn from(path: SectionPath) -> String {
        path.to_string()
    }
}

fn is_key(key: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !key.is_empty() && key.len() <= KEY_MAX && key.chars().all(fits)
}

/// Parses the overrides that a tool requests
/// ([`ToolError::VisibilityExpansion`](foldlog::tools::ToolError::VisibilityExpansion)): an object
/// of section paths and `full`, `summary` or `hidden`.
///
/// # Errors
///
/// [`PromptError::InvalidOverrides`] if the JSON has another form.
pub fn overrides_from_json(json: &Value) -> Result<VisibilityOverrides, PromptError> {
    VisibilityOverrides::deserialize(json).map_err(|error| PromptError::InvalidOverrides(error.to_string()))
}

/// Adds a section's run-time state to the resources of a run.
type Register = dyn Fn(ResourceRegistryBuilder) -> ResourceRegistryBuilder + Send + Sync;

/// Describes a part of a prompt: a Markdown template, the values of its placeholders, and its child
/// sections.
///
/// `${name}` in a template is replaced with the parameter of that name. Before `{`, two dollars
/// produce one dollar that starts no placeholder: `$${name}` becomes the text `${name}`. Any other
/// dollar is literal. A text value is inserted unchanged, any other value as JSON. Placeholders
/// within a value are not substituted.
#[derive(Clone)]
pub struct MarkdownSection {
    pub(super) key: String,
    pub(super) title: String,
    pub(super) template: String,
    pub(super) summary: Option<String>,
    pub(super) visibility: SectionVisibility,
    parameters: BTreeMap<String, Value>,
    pub(super) tools: BTreeSet<String>,
    pub(super) children: Vec<MarkdownSection>,
    resources: Vec<Arc<Register>>,
}

impl MarkdownSection {
    /// Creates a section without a title, shown in full. Its key must be unique among the children
    /// of one parent: 1 to 64 letters, digits, `_`, `-` and `.` of ASCII.
    pub fn new(key: impl Into<String>, template: impl Into<String>) -> MarkdownSection {
        MarkdownSection {
            key: key.into(),
            title: String::new(),
            template: template.into(),
            summary: None,
            visibility: SectionVisibility::Full,
            parameters: BTreeMap::new(),
            tools: BTreeSet::new(),
            children: Vec::new(),
            resources: Vec::new(),
        }
    }

    /// Sets the heading of the section. A title is not a template.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> MarkdownSection {
        self.title = title.into();
        self
    }

    /// Sets the template that replaces the section while its visibility is
    /// [`Summary`](SectionVisibility::Summary).
    #[must_use]
    pub fn with_summary(mut self, summary: impl Into<String>) -> MarkdownSection {
        self.summary = Some(summary.into());
        self
    }

    /// Sets the visibility of the section, unless an override replaces it.
    #[must_use]
    pub fn with_visibility(mut self, visibility: SectionVisibility) -> MarkdownSection {
        self.visibility = visibility;
        self
    }

    /// Sets the value of one placeholder.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<Value>) -> MarkdownSection {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Sets the values of placeholders from a struct's fields, or from a map. Fields without a
    /// placeholder are ignored.
    ///
    /// # Errors
    ///
    /// [`PromptError::InvalidParameters`] if the value is neither a struct nor a map with names.
    pub fn with_parameters(mut self, parameters: &impl Serialize) -> Result<MarkdownSection, PromptError> {
        let invalid = |reason: String| PromptError::InvalidParameters { section: self.key.clone(), reason };
        match serde_json::to_value(parameters) {
            Ok(Value::Object(values)) => self.parameters.extend(values),
            Ok(_) => return Err(invalid("they are another kind of value".to_owned())),
            Err(error) => return Err(invalid(error.to_string())),
        }
        Ok(self)
    }

    /// Restricts tools of the prompt: the model may call them only while this section, or another
    /// one that names them, is shown in full.
    #[must_use]
    pub fn with_tools<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> MarkdownSection {
        self.tools.extend(names.into_iter().map(Into::into));
        self
    }

    /// Appends a child section.
    #[must_use]
    pub fn with_child(mut self, child: MarkdownSection) -> MarkdownSection {
        self.children.push(child);
        self
    }

    /// Adds run-time state to the section, which the prompt registers as a resource of type `T`. It
    /// is not captured.
    #[must_use]
    pub fn with_resource<T: ?Sized + Send + Sync + 'static>(mut self, resource: Arc<T>) -> MarkdownSection {
        self.resources.push(Arc::new(move |builder| builder.resource::<T>(Arc::clone(&resource))));
        self
    }

    /// Adds run-time state to the section, which the prompt registers as a resource. It is captured
    /// before each call, and restored if the call fails.
    #[must_use]
    pub fn with_snapshotable<R: Snapshotable>(mut self, resource: Arc<R>) -> MarkdownSection {
        self.resources.push(Arc::new(move |builder| builder.snapshotable(Arc::clone(&resource))));
        self
    }

    /// Registers the run-time state of the section and of its children.
    pub(super) fn register_resources(&self, builder: ResourceRegistryBuilder) -> ResourceRegistryBuilder {
        let builder = self.resources.iter().fold(builder, |builder, register| register(builder));
        self.children.iter().fold(builder, |builder, child| child.register_resources(builder))
    }
}

impl fmt::Debug for MarkdownSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MarkdownSection")
            .field("key", &self.key)
            .field("visibility", &self.visibility)
            .field("template", &self.template)
            .field("children", &self.children)
            .finish_non_exhaustive()
    }
}

pub(super) struct Rendering<'a> {
    overrides: &'a VisibilityOverrides,
    parts: Vec<String>,
    known: BTreeSet<SectionPath>,
    pub(super) shown: Vec<(SectionPath, SectionVisibility)>,
    /// Tools of all sections, shown or not.
    pub(super) named_tools: Vec<(SectionPath, String)>,
    /// Tools of sections that are shown in full.
    pub(super) shown_tools: BTreeSet<String>,
}

impl<'a> Rendering<'a> {
    pub(super) fn new(overrides: &'a VisibilityOverrides) -> Rendering<'a> {
        Rendering {
            overrides,
            parts: Vec::new(),
            known: BTreeSet::new(),
            shown: Vec::new(),
            named_tools: Vec::new(),
            shown_tools: BTreeSet::new(),
        }
    }

    /// Renders the children of one parent. They are rendered only if it is shown in full.
    pub(super) fn sections(
        &mut self,
        sections: &[MarkdownSection],
        parent: Option<(&SectionPath, SectionVisibility)>,
    ) -> Result<(), PromptError> {
        sections.iter().try_for_each(|section| self.section(section, parent))
    }

    fn section(
        &mut self,
        section: &MarkdownSection,
        parent: Option<(&SectionPath, SectionVisibility)>,
    ) -> Result<(), PromptError> {
        let path = SectionPath::from_parent(parent.map(|(path, _)| path), &section.key)?;
        if !self.known.insert(path.clone()) {
            return Err(PromptError::DuplicateSection(path));
        }
        self.named_tools.extend(section.tools.iter().map(|tool| (path.clone(), tool.clone())));
        let is_within_shown = parent.is_none_or(|(_, visibility)| visibility == SectionVisibility::Full);
        let mut visibility = SectionVisibility::Hidden;
        if is_within_shown {
            visibility = self.overrides.get(&path).copied().unwrap_or(section.visibility);
            self.shown.push((path.clone(), visibility));
            self.show(section, &path, visibility)?;
        }
        self.sections(&section.children, Some((&path, visibility)))
    }

    fn show(
        &mut self,
        section: &MarkdownSection,
        path: &SectionPath,
        visibility: SectionVisibility,
    ) -> Result<(), PromptError> {
        let template = match visibility {
            SectionVisibility::Hidden => return Ok(()),
            SectionVisibility::Summary => {
                section.summary.as_deref().ok_or_else(|| PromptError::MissingSummary(path.clone()))?
            }
            SectionVisibility::Full => {
                self.shown_tools.extend(section.tools.iter().cloned());
                &section.template
            }
        };
        if !section.title.is_empty() {
            let (first, last) = HEADINGS;
            let level = (first + path.keys().len() - 1).min(last);
            self.parts.push(format!("{} {}", "#".repeat(level), section.title));
        }
        let text = template::fill(template, &section.parameters, path)?;
        let text = text.trim_matches('\n');
        if !text.is_empty() {
            self.parts.push(text.to_owned());
        }
        Ok(())
    }

    /// Returns the text of all sections.
    pub(super) fn text(&self) -> Result<String, PromptError> {
        match self.overrides.keys().find(|path| !self.known.contains(path)) {
            Some(path) => Err(PromptError::NoSuchSection(path.clone())),
            None => Ok(self.parts.join("\n\n")),
        }
    }
}
