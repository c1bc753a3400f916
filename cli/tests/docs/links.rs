//! Links between pages. Addresses of the network are not followed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{is_markdown, lines, pages, project, read};

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (number, line, _) in lines(&text).filter(|(_, _, fence)| fence.is_none()) {
            for target in targets(line) {
                if !leads_somewhere(&page, &target) {
                    broken.push(format!("{}:{number}: {target}", page.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_lists_each_page_of_the_book() {
    let book = project().join("docs");
    let summary = read(&book.join("SUMMARY.md"));
    let listed: BTreeSet<_> = summary.lines().flat_map(targets).map(|target| book.join(target)).collect();
    let in_book = |page: &PathBuf| page.starts_with(&book) && !page.ends_with("SUMMARY.md");
    let pages: BTreeSet<_> = pages().into_iter().filter(in_book).collect();
    assert_eq!(listed, pages);
}

/// Returns the targets of the links in a line, without its code spans.
fn targets(line: &str) -> Vec<String> {
    let without_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let after = without_code.split("](").skip(1);
    after.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

fn leads_somewhere(page: &Path, target: &str) -> bool {
    if target.starts_with("https://") || target.starts_with("http://") {
        return true;
    }
    let (file, heading) =
        target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let path = match file {
        "" => page.to_owned(),
        file => page.parent().expect("a page is in a directory").join(file),
    };
    match heading {
        None => path.exists(),
        Some(heading) => path.is_file() && (!is_markdown(&path) || anchors(&read(&path)).contains(heading)),
    }
}

/// Returns the anchors of a page: its headings as web pages of repositories name them, and names
/// that the page gives itself.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line, _) in lines(text).filter(|(_, _, fence)| fence.is_none()) {
        for attribute in ["name=\"", "id=\""] {
            anchors.extend(
                line.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
            );
        }
        let Some(heading) = line.strip_prefix('#') else { continue };
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}
