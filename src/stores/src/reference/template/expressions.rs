//! What minijinja's fuel leaves open, and Python's `'%03d' % value`, which minijinja has as a filter only.

use std::borrow::Cow;

/// Most characters of an expression outside of quotes. minijinja 3.1 recurses once for each operator, and 10,000 of
/// them overflow a stack of 2 MiB.
const MAX_EXPRESSION: usize = 500;
/// Words that aren't names. What follows in parentheses isn't a call.
const KEYWORDS: [&str; 7] = ["and", "or", "not", "in", "is", "if", "else"];
/// Longer operands are left alone, so that a template takes no quadratic time.
const MAX_OPERAND: usize = 256;

/// Checks that the expressions of a template are short, and can't make lists: minijinja 3.1 counts the time and the memory
/// for the text of a list after they were spent, and `([1] * 99999999) ~ ''` takes half a gigabyte.
///
/// # Errors
/// If an expression is too long, or has lists, objects, tuples, floats, attributes or statements: the text says what was
/// expected.
pub(super) fn check(template: &str) -> Result<(), String> {
    if template.contains("{%") || template.contains("{#") {
        return Err("expected expressions in {{ }} only, but found {% or {#, which aren't read".into());
    }
    // Whether each open parenthesis is that of a call.
    let (mut calls, mut at, mut inside, mut length) = (Vec::new(), 0, false, 0);
    while let Some(c) = template[at..].chars().next() {
        let rest = &template[at..];
        let mut len = c.len_utf8();
        match c {
            '{' if !inside && rest.starts_with("{{") => (inside, len, length, calls) = (true, 2, 0, Vec::new()),
            '}' if inside && rest.starts_with("}}") => (inside, len) = (false, 2),
            '\'' | '"' if inside => match quoted(rest) {
                Some(whole) => len = whole,
                None => break,
            },
            '(' if inside => {
                let before = template[..at].trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
                calls.push(before.is_some_and(|word| !word.is_empty() && !KEYWORDS.contains(&word)));
            }
            ')' if inside => _ = calls.pop(),
            '[' | '{' | '.' if inside => {
                return Err(format!("expected text, integers, names and calls, but found '{c}', which isn't read"));
            }
            ',' if inside && calls.last() != Some(&true) => {
                return Err("expected text, integers, names and calls, but found ',' outside of a call".into());
            }
            _ => {}
        }
        length += 1;
        if inside && length > MAX_EXPRESSION {
            return Err("expected a shorter expression".into());
        }
        at += len;
    }
    Ok(())
}

/// Writes `'text' % operand` in the expressions of a template as `'text'|format(operand)`. The operand is a name, a
/// number, text, or what stands in parentheses, with a sign or a call. Anything else is left alone, and minijinja says
/// that it can't divide text.
pub(super) fn as_filter(template: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed("");
    // The end of what was copied, and whether the last operator binds the text more closely than `%`.
    let (mut copied, mut at, mut bound, mut inside) = (0, 0, false, false);
    while let Some(c) = template[at..].chars().next() {
        let rest = &template[at..];
        match c {
            '{' if !inside && rest.starts_with("{{") => (inside, bound, at) = (true, false, at + 2),
            '}' if inside && rest.starts_with("}}") => (inside, at) = (false, at + 2),
            '\'' | '"' if inside => {
                let Some(len) = quoted(rest) else { break };
                let after = &rest[len..];
                let percent = after.trim_start().strip_prefix('%').filter(|after| !after.starts_with('}'));
                match percent.filter(|_| !bound).and_then(|operand| Some((operand, operand_len(operand)?))) {
                    Some((operand, operand_len)) => {
                        let out = out.to_mut();
                        out.push_str(&template[copied..at + len]);
                        out.push_str("|format(");
                        out.push_str(operand[..operand_len].trim());
                        out.push(')');
                        at = template.len() - operand.len() + operand_len;
                        copied = at;
                    }
                    None => at += len,
                }
                bound = false;
            }
            _ => {
                if !c.is_whitespace() {
                    bound = matches!(c, '*' | '/' | '%');
                }
                at += c.len_utf8();
            }
        }
    }
    if copied == 0 {
        return Cow::Borrowed(template);
    }
    out.to_mut().push_str(&template[copied..]);
    out
}

/// Returns the length of the quoted text at the start of `text`; `None` if it doesn't end.
fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the length of the operand at the start of `text`; `None` if it is of another kind.
fn operand_len(text: &str) -> Option<usize> {
    let text = &text[..text.floor_char_boundary(MAX_OPERAND)];
    let start = text.len() - text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '+' | '-')).len();
    let operand = &text[start..];
    let word = operand.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(operand.len());
    let mut len = match operand.chars().next()? {
        '\'' | '"' => quoted(operand)?,
        _ => word,
    };
    if operand[len..].starts_with('(') && !operand.starts_with(['\'', '"']) {
        len += parenthesised(&operand[len..])?;
    }
    // These bind more closely than `%`.
    let after = operand[len..].trim_start();
    let closer = after.starts_with(['.', '[', '(', '|']) || after.starts_with("**");
    (len > 0 && !closer).then_some(start + len)
}

/// Returns the length of what stands in parentheses at the start of `text`, with them.
fn parenthesised(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '\'' | '"' => at += quoted(&text[at..])? - 1,
            _ => {}
        }
        at += c.len_utf8();
        if depth == 0 {
            return Some(at);
        }
    }
    None
}
