//! Counts the values of a JSON text before any of them takes memory.

/// Greatest number of values in a JSON text from outside that is parsed. Each value takes up to
/// some hundred bytes, however short its text is.
pub(crate) const VALUES_MAX: usize = 1 << 18;

/// Returns whether a text contains at most [`VALUES_MAX`] values and field names, judged by its
/// separators. The count for invalid JSON is arbitrary; its parser refuses it.
pub(crate) fn is_moderate(json: &[u8]) -> bool {
    let (mut values, mut is_text, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => {
                values += 1;
                if values > VALUES_MAX {
                    return false;
                }
            }
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{VALUES_MAX, is_moderate};

    /// Protects long strings, whose contents are arbitrary, from being counted as many values.
    #[test]
    fn only_separators_outside_of_texts_count() {
        let many = ",".repeat(2 * VALUES_MAX);
        assert!(is_moderate(format!("[\"{many}\",\"\\\"{many}\"]").as_bytes()));
        assert!(!is_moderate(format!("[\"\",\"\\\\\"{many}]").as_bytes()));
        let values = vec!["{}"; VALUES_MAX / 2 - 1].join(",");
        assert!(is_moderate(format!("[{values}]").as_bytes()));
        assert!(!is_moderate(format!("[{values},{{}},{{}}]").as_bytes()));
    }
}
