use foldlog::escape;

use super::SectionPath;

/// Reports why a prompt cannot be rendered. Each message names the problem, and then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A section's key is malformed.
    #[error(
        "`{}` is no key of a section: use 1 to 64 letters, digits, `_`, `-` and `.` of ASCII",
        escape::text(.0)
    )]
    InvalidKey(String),
    /// Two sections have the same path.
    #[error("two sections have the path `{0}`: give each section of one parent a key of its own")]
    DuplicateSection(SectionPath),
    /// A template or a summary is malformed.
    #[error(
        "the template of section `{section}` has a malformed placeholder `{}`: write `${{name}}` for a parameter, and \
         `$${{` for the characters themselves",
        escape::text(.found)
    )]
    InvalidTemplate {
        /// Section of the template.
        section: SectionPath,
        /// Start of the malformed placeholder.
        found: String,
    },
    /// A section has no value for a placeholder of its template.
    #[error("section `{section}` has no value for `${{{}}}`: give it the parameter", escape::text(.parameter))]
    MissingParameter {
        /// Section of the template.
        section: SectionPath,
        /// Name of the parameter.
        parameter: String,
    },
    /// The parameters of a section are not a map of names to values.
    #[error("the parameters of section `{}` are no map: {}", escape::text(.section), escape::text(.reason))]
    InvalidParameters {
        /// Key of the section.
        section: String,
        /// Problem of the parameters.
        reason: String,
    },
    /// A section is to be shown as its summary, but has none.
    #[error("section `{0}` has no summary to be shown: give it one, or show or hide the section")]
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
    #[error("the prompt has no section `{0}`, which is to be shown otherwise: correct the path")]
    NoSuchSection(SectionPath),
    /// Overrides do not have the expected form.
    #[error(
        "the overrides are malformed: {}: write an object of section paths and `full`, `summary` or `hidden`",
        escape::text(.0)
    )]
    InvalidOverrides(String),
}
