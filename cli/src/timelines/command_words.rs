//! The words of a shell command, as far as they are certain without running it.

use std::iter::Peekable;
use std::str::Chars;

/// A part of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CommandPart {
    Word(CommandWord),
    /// An operator, such as `;` or `&&`, or the end of a line.
    Operator,
}

/// A word without its quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CommandWord {
    pub(super) text: String,
    /// Whether the shell expands nothing in it, apart from a `~` at its beginning.
    pub(super) is_certain: bool,
    /// Whether it begins with a `~` that the shell expands.
    pub(super) has_tilde: bool,
}

/// Returns the parts of a command, up to a quote that is not closed.
pub(super) fn command_parts(command: &str) -> Vec<CommandPart> {
    let mut parts = Vec::new();
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.peek().copied() {
        match letter {
            ' ' | '\t' | '\r' => drop(letters.next()),
            '\n' | ';' | '&' | '|' | '(' | ')' => {
                letters.next();
                parts.push(CommandPart::Operator);
            }
            '#' => while letters.next_if(|letter| *letter != '\n').is_some() {},
            _ => match read_word(&mut letters) {
                Some(word) => parts.push(CommandPart::Word(word)),
                None => break,
            },
        }
    }
    parts
}

/// Reads a word; `None` if a quote is not closed.
fn read_word(letters: &mut Peekable<Chars<'_>>) -> Option<CommandWord> {
    let mut word = CommandWord { is_certain: true, ..CommandWord::default() };
    word.has_tilde = letters.peek() == Some(&'~');
    while let Some(letter) = letters.next_if(|letter| !" \t\r\n;&|()".contains(*letter)) {
        match letter {
            '\'' => read_quoted(letters, &mut word.text)?,
            '"' => read_double_quoted(letters, &mut word)?,
            '\\' => match letters.next() {
                // A line that continues.
                Some('\n') => {}
                escaped => word.text.extend(escaped),
            },
            '$' if letters.next_if_eq(&'\'').is_some() => read_escaped(letters, &mut word)?,
            '$' | '`' | '*' | '?' | '[' | '{' | '<' | '>' => {
                word.is_certain = false;
                word.text.push(letter);
            }
            letter => word.text.push(letter),
        }
    }
    Some(word)
}

/// Reads the rest of a text in `'`.
fn read_quoted(letters: &mut Peekable<Chars<'_>>, text: &mut String) -> Option<()> {
    loop {
        match letters.next()? {
            '\'' => return Some(()),
            letter => text.push(letter),
        }
    }
}

/// Reads the rest of a text in `"`.
fn read_double_quoted(letters: &mut Peekable<Chars<'_>>, word: &mut CommandWord) -> Option<()> {
    loop {
        match letters.next()? {
            '"' => return Some(()),
            '\\' => match letters.next()? {
                '\n' => {}
                escaped @ ('$' | '`' | '"' | '\\') => word.text.push(escaped),
                other => word.text.extend(['\\', other]),
            },
            letter => {
                word.is_certain &= !['$', '`'].contains(&letter);
                word.text.push(letter);
            }
        }
    }
}

/// Reads the rest of a text in `$'`. Numbers of characters are not decoded.
fn read_escaped(letters: &mut Peekable<Chars<'_>>, word: &mut CommandWord) -> Option<()> {
    loop {
        match letters.next()? {
            '\'' => return Some(()),
            '\\' => match letters.next()? {
                'n' => word.text.push('\n'),
                't' => word.text.push('\t'),
                'r' => word.text.push('\r'),
                escaped @ ('\\' | '\'' | '"' | '?') => word.text.push(escaped),
                _ => word.is_certain = false,
            },
            letter => word.text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_certain_if_the_shell_expands_nothing_in_them() {
        let words = |command: &str| -> Vec<String> {
            let parts = command_parts(command).into_iter();
            parts
                .map(|part| match part {
                    CommandPart::Operator => ";".to_owned(),
                    CommandPart::Word(word) if word.is_certain => word.text,
                    CommandPart::Word(_) => "?".to_owned(),
                })
                .collect()
        };
        assert_eq!(words("cd '../a;b' && x"), ["cd", "../a;b", ";", ";", "x"]);
        assert_eq!(
            words(r#"cd '*' \* "a b" "\$x\n" $'new\nline' # '"#),
            ["cd", "*", "*", "a b", "$x\\n", "new\nline"]
        );
        assert_eq!(words(r#"a$b "$c" `d` e* f? [g] {h,i} $'\x2e' >j"#), ["?"; 9]);
        assert_eq!(words("a\\\nb 'c"), ["ab"]);
        assert_eq!(words(&"'".repeat(9999)), [""; 0]);
    }
}
