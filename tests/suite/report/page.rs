//! Reads a report as its pages do, by the table in `view/src/lists.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// A report, with all its blocks unpacked.
pub(super) struct Page {
    html: String,
    pub(super) head: Value,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Page {
    pub(super) fn read(path: &Path) -> Page {
        let html = fs::read_to_string(path).unwrap();
        let element = |begin: &str| -> Vec<(String, String)> {
            let parts = html.split(begin).skip(1);
            parts
                .map(|part| part.split_once("\">").unwrap())
                .map(|(id, rest)| (id.to_owned(), rest.split('<').next().unwrap().to_owned()))
                .collect()
        };
        let head = &element("<script type=\"application/json\" id=\"")[0];
        assert_eq!(head.0, "head");
        let blocks =
            element("<script type=\"application/octet-stream\" id=\"b").into_iter().map(|(id, text)| {
                let mut bytes = Vec::new();
                flate2::read::ZlibDecoder::new(&*STANDARD.decode(text).unwrap())
                    .read_to_end(&mut bytes)
                    .unwrap();
                (id.parse().unwrap(), bytes)
            });
        Page { head: serde_json::from_str(&head.1).unwrap(), blocks: blocks.collect(), html }
    }

    fn block(&self, number: &Value) -> &[u8] {
        &self.blocks[&number.as_u64().unwrap()]
    }

    /// Returns the document in the block that a field of the head names.
    pub(super) fn json_block(&self, field: &str) -> Value {
        serde_json::from_slice(self.block(&self.head[field])).unwrap()
    }

    /// Returns whether the file contains a text, as it is or escaped in JSON, including its blocks.
    pub(super) fn holds(&self, text: &str) -> bool {
        let json = serde_json::to_string(text).unwrap();
        let forms = [text.as_bytes().to_vec(), json.trim_matches('"').as_bytes().to_vec()];
        let holds = |bytes: &[u8]| {
            forms.iter().any(|form| bytes.windows(form.len()).any(|window| window == form.as_slice()))
        };
        holds(self.html.as_bytes()) || self.blocks.values().any(|bytes| holds(bytes))
    }

    /// Returns the lines of a list of blocks, without their marks.
    fn lines(&self, blocks: &Value) -> Vec<Value> {
        let blocks = blocks.as_array().unwrap().iter();
        let texts = blocks.map(|block| std::str::from_utf8(self.block(&block[1])).unwrap());
        texts
            .flat_map(|text| text.split('\n'))
            .map(|line| serde_json::from_str(&line[1..]).unwrap())
            .collect()
    }

    pub(super) fn documents(&self) -> Vec<Value> {
        self.lines(&self.head["documents"])
    }

    /// Returns the summaries of a conversation that apply at a position.
    pub(super) fn summaries_at(&self, evaluation: &str, at: u64) -> Vec<Value> {
        let all = self.head["conversations"].as_array().unwrap();
        let Some(found) = all.iter().find(|one| one["evaluation_id"] == evaluation) else {
            return Vec::new();
        };
        let summaries: Vec<Value> = serde_json::from_slice(self.block(&found["summaries"])).unwrap();
        let counts = |one: &Value| {
            let mut ranges = one["counts"].as_array().unwrap().iter();
            ranges.any(|range| (range[0].as_u64().unwrap()..=range[1].as_u64().unwrap()).contains(&at))
        };
        summaries.into_iter().filter(counts).collect()
    }

    pub(super) fn tasks_at(&self, at: u64) -> Vec<Value> {
        self.list(&self.head["tasks"], at).unwrap_or_default()
    }

    /// Returns the rows and the documents of the records after damage.
    pub(super) fn beyond(&self) -> (Vec<Value>, Vec<Value>) {
        let beyond = &self.head["beyond"];
        (self.lines(&beyond["rows"]), self.lines(&beyond["documents"]))
    }

    /// Returns the items of each slice at a position.
    pub(super) fn slices_at(&self, at: u64) -> BTreeMap<String, Vec<Value>> {
        let slices = self.head["slices"].as_array().unwrap().iter();
        let held =
            slices.map(|slice| Some((slice["name"].as_str()?.to_owned(), self.list(&slice["list"], at)?)));
        held.flatten().collect()
    }

    pub(super) fn messages_at(&self, evaluation: &str, at: u64) -> Vec<Value> {
        let all = self.head["conversations"].as_array().unwrap();
        let found = all.iter().find(|one| one["evaluation_id"] == evaluation);
        found.and_then(|one| self.list(&one["list"], at)).unwrap_or_default()
    }

    /// Returns the contents of a workspace's files at a position, by their paths; empty for files
    /// that are left out.
    pub(super) fn files_at(&self, workspace: &str, at: u64) -> BTreeMap<String, String> {
        let contents = self.lines(&self.head["files"]["contents"]);
        let all = self.head["files"]["workspaces"].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == workspace);
        let files = found.and_then(|one| self.list(&one["list"], at)).unwrap_or_default();
        let file = |file: Value| {
            let content = file["content"].as_u64().map(|number| &contents[number as usize]["text"]);
            let text = content.and_then(Value::as_str).unwrap_or_default();
            (file["path"].as_str().unwrap().to_owned(), text.to_owned())
        };
        files.into_iter().map(file).collect()
    }

    /// Returns a list at a position; `None` before its first version.
    fn list(&self, places: &Value, at: u64) -> Option<Vec<Value>> {
        let numbers = list_at(self.block(&places["versions"]), at)?;
        let items = self.lines(&places["items"]);
        assert_eq!(items.len() as u64, places["count"].as_u64().unwrap());
        Some(numbers.into_iter().map(|number| items[number as usize].clone()).collect())
    }

    /// Asserts that the file contains only a report's own elements, and no attribute that makes a
    /// request.
    pub(super) fn assert_own_markup_only(&self) {
        let nonce = self.html.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert_eq!(nonce.len(), 32);
        // The tags: the texts between them cannot contain `<`.
        let mut rest = self.html.as_str();
        let mut tags = BTreeMap::new();
        while let Some((_, behind)) = rest.split_once('<') {
            let (tag, behind) = behind.split_once('>').unwrap();
            *tags.entry(tag.to_owned()).or_insert(0_u32) += 1;
            // A style contains no markup.
            rest = if tag.starts_with("style") { behind.split_once("</style").unwrap().1 } else { behind };
        }
        for tag in tags.keys() {
            let own = [
                "!doctype html",
                "html lang=\"en\"",
                "/html",
                "head",
                "/head",
                "body",
                "/body",
                "title",
                "/title",
                "noscript",
                "/noscript",
                "div id=\"app\"",
                "/div",
                "/script",
                "meta charset=\"utf-8\"",
                "meta name=\"referrer\" content=\"no-referrer\"",
                "meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"",
                "script type=\"application/json\" id=\"head\"",
            ];
            let is_own = own.contains(&tag.as_str())
                || tag.starts_with("meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-")
                || *tag == format!("style nonce=\"{nonce}\"")
                || *tag == format!("script type=\"importmap\" nonce=\"{nonce}\"")
                || *tag == format!("script type=\"module\" async nonce=\"{nonce}\"")
                || tag.strip_prefix("script type=\"application/octet-stream\" id=\"b").is_some_and(|id| {
                    id.strip_suffix('"').is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
                });
            assert!(is_own, "<{tag}>");
        }
        assert_eq!(
            self.html.matches(nonce).count(),
            5,
            "the policy twice, and the three elements that it allows"
        );
        let unseen = |c: char| c != '\n' && foldlog_codec::escape::is_escaped(c);
        assert_eq!(self.html.chars().find(|c| unseen(*c)), None);
        let style = self.html.split("<style").nth(1).unwrap().split("</style").next().unwrap();
        for request in ["url(", "@import", "image-set("] {
            assert!(!style.contains(request), "{request} in the style");
        }
    }
}

/// Returns the numbers of a list's items at a position; `None` before its first version.
fn list_at(bytes: &[u8], position: u64) -> Option<Vec<u32>> {
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let (versions, trees, nodes) = (words[0] as usize, words[1] as usize, words[2] as usize);
    let mut at = 3;
    let mut part = |len: usize| {
        at += len;
        &words[at - len..at]
    };
    let (positions, tree_of, lens) = (part(versions), part(versions), part(versions));
    let (roots, items, left, right) = (part(trees), part(nodes), part(nodes), part(nodes));
    let mut from = 0_u64;
    let mut version = None;
    for (number, delta) in positions.iter().enumerate() {
        from += u64::from(*delta);
        version = if from <= position { Some(number) } else { version };
    }
    let version = version?;
    let numbers: Vec<u32> = items
        .iter()
        .scan(0_u32, |sum, delta| {
            *sum = sum.wrapping_add(*delta);
            Some(*sum)
        })
        .collect();
    // An in-order traversal without recursion: left subtree, node, right subtree.
    let child =
        |node: u32, back: &[u32]| back[node as usize - 1].checked_sub(1).map_or(0, |back| node - back - 1);
    let (mut list, mut stack, mut node) = (Vec::new(), Vec::new(), roots[tree_of[version] as usize]);
    loop {
        while node != 0 {
            stack.push(node);
            node = child(node, left);
        }
        let Some(top) = stack.pop() else { break };
        list.push(numbers[top as usize - 1]);
        node = child(top, right);
    }
    list.truncate(lens[version] as usize);
    Some(list)
}
