use foldlog::escape;

use super::SectionPath;

/// Reports why a prompt cannot be rendered. Each message names the problem, and then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A section's key is malformed.
    #[error(
        "`{}` is not a valid key of a section: use 1 to 64 ASCII letters, digits, `_`, `-` and `.`",
        escape::text(.0)
    )]
    InvalidKey(String),
    /// Two sections have the same path.
    #[error("two sections have the path `{0}`: give each section of a parent its own key")]
    DuplicateSection(SectionPath),
    /// A template or a summary is malformed.
    #[error(
        "the template of section `{section}` has a malformed placeholder `{}`: write `${{name}}` for a \
         parameter, and `$${{` for a literal `${{`",
        escape::text(.found)
    )]
    InvalidTemplate {
        /// Section of the template.
        section: SectionPath,
        /// Start of the malformed placeholder.
        found: String,
    },
    /// A section has no value for a placeholder of its template.
    #[error("section `{section}` has no value for `${{{}}}`: set the parameter", escape::text(.parameter))]
    MissingParameter {
        /// Section of the template.
        section: SectionPath,
        /// Name of the parameter.
        parameter: String,
    },
    /// The parameters of a section are not a map of names to values.
    #[error("the parameters of section `{}` are not a map: {}", escape::text(.section), escape::text(.reason))]
    InvalidParameters {
        /// Key of the section.
        section: String,
        /// Problem of the parameters.
        reason: String,
    },
    /// A section is to be shown as its summary, but has none.
    #[error("section `{0}` has no summary: add one, or show the section in full, or hide it")]
    MissingSummary(SectionPath),
    /// A section names a tool that the prompt does not have.
    #[error("section `{section}` names tool `{}`, which the prompt does not have: add the tool", escape::text(.tool))]
    NoSuchTool {
        /// Section that names the tool.
        section: SectionPath,
        /// Name of the tool.
        tool: String,
    },
    /// An override names a section that the prompt does not have.
    #[error("the prompt has no section `{0}`, which an override names: correct the path")]
    NoSuchSection(SectionPath),
    /// Overrides do not have the expected form.
    #[error(
        "the overrides are malformed: {}: write an object that maps section paths to `full`, `summary` or `hidden`",
        escape::text(.0)
    )]
    InvalidOverrides(String),
}
