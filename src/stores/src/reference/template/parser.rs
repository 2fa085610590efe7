//! Parses expressions by recursive descent: one function for each precedence of operators, as in Jinja.

use std::iter::Peekable;
use std::str::CharIndices;

use super::expression::{Expr, Op, Value};
use super::{MAX_DEPTH, shown};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Value(Value),
    Name(String),
    Op(&'static str),
    /// `}}`. The text after it begins at this byte.
    End(usize),
}

const OPERATORS: [&str; 12] = ["**", "//", "}}", "+", "-", "*", "/", "%", "~", "(", ")", ","];

/// Parses one expression, up to its `}}`.
pub(super) struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    next: Option<Token>,
    depth: usize,
    end: usize,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices().peekable(), next: None, depth: 0, end: text.len() }
    }

    /// Returns the text after the expression.
    pub fn rest(&self) -> &'a str {
        &self.text[self.end..]
    }

    /// Reads the expression.
    ///
    /// # Errors
    /// If the expression can't be read: the text says why.
    pub fn all(&mut self) -> Result<Expr, String> {
        // In Jinja a sign directly after {{ controls white space.
        if self.text.starts_with(['-', '+']) {
            return Err("expected a space after {{ before a sign".into());
        }
        self.advance()?;
        let expr = self.sum()?;
        match self.next.take() {
            Some(Token::End(end)) => {
                self.end = end;
                Ok(expr)
            }
            other => Err(self.found("}}", other.as_ref())),
        }
    }

    fn found(&self, expected: &str, token: Option<&Token>) -> String {
        let found = match token {
            None => "the end".to_owned(),
            Some(Token::Value(value)) => format!("{:?}", value.to_string()),
            Some(Token::Name(name)) => name.clone(),
            Some(Token::Op(op)) => (*op).to_owned(),
            Some(Token::End(_)) => "}}".to_owned(),
        };
        format!(
            "expected {expected}, but found {found}; of Jinja, integers, text, names, + - * // % ** ~ and calls are read"
        )
    }

    fn advance(&mut self) -> Result<(), String> {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let Some(&(at, c)) = self.chars.peek() else {
            self.next = None;
            return Ok(());
        };
        self.next = Some(match c {
            '0'..='9' => {
                let digits = self.while_(|c| c.is_ascii_digit() || c == '_' || c == '.');
                let n = digits.parse().map_err(|_| format!("expected an integer, but found {}", shown(digits)))?;
                Token::Value(Value::Int(n))
            }
            c if c.is_alphabetic() || c == '_' => {
                Token::Name(self.while_(|c| c.is_alphanumeric() || c == '_').to_owned())
            }
            '\'' | '"' => {
                self.chars.next();
                let text = self.while_(|other| other != c && other != '\\').to_owned();
                if self.chars.next().map(|(_, end)| end) != Some(c) {
                    return Err("expected text in quotes without backslashes, but found another end".into());
                }
                Token::Value(Value::Text(text))
            }
            '=' => {
                self.chars.next();
                Token::Op("=")
            }
            _ => {
                let op = OPERATORS.into_iter().find(|op| self.text[at..].starts_with(op));
                let op = op.ok_or_else(|| {
                    format!("expected an expression, but found {c:?}; of Jinja, integers, text, names, + - * // % ** ~ and calls are read")
                })?;
                let _ = self.chars.nth(op.len() - 1);
                if op == "}}" { Token::End(at + 2) } else { Token::Op(op) }
            }
        });
        Ok(())
    }

    /// Takes characters as long as `keep` holds for them.
    fn while_(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let from = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        while self.chars.next_if(|(_, c)| keep(*c)).is_some() {}
        &self.text[from..self.chars.peek().map_or(self.text.len(), |(at, _)| *at)]
    }

    /// Takes the next token if it is one of `ops`, and returns its operator; else `None`.
    fn takes(&mut self, ops: &[(&str, Op)]) -> Result<Option<Op>, String> {
        let Some(Token::Op(found)) = &self.next else { return Ok(None) };
        let Some((_, op)) = ops.iter().find(|(text, _)| text == found) else { return Ok(None) };
        self.advance()?;
        Ok(Some(*op))
    }

    /// Parses operands with operators of one precedence between them, from left to right.
    fn row(&mut self, ops: &[(&str, Op)], operand: fn(&mut Self) -> Result<Expr, String>) -> Result<Expr, String> {
        let mut left = operand(self)?;
        let depth = self.depth;
        while let Some(op) = self.takes(ops)? {
            // Evaluation recurses into left operands too, so each operator counts as a level.
            self.deeper()?;
            left = Expr::Binary(op, Box::new((left, operand(self)?)));
        }
        self.depth = depth;
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr, String> {
        self.row(&[("+", Op::Add), ("-", Op::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr, String> {
        self.row(&[("~", Op::Concat)], Self::product)
    }

    fn product(&mut self) -> Result<Expr, String> {
        self.row(&[("*", Op::Mul), ("//", Op::Div), ("%", Op::Mod)], Self::power)
    }

    fn power(&mut self) -> Result<Expr, String> {
        self.row(&[("**", Op::Pow)], Self::unary)
    }

    fn deeper(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err("expected a shorter expression".into()) } else { Ok(()) }
    }

    fn unary(&mut self) -> Result<Expr, String> {
        self.deeper()?;
        let expr = match self.takes(&[("-", Op::Sub), ("+", Op::Add)])? {
            Some(Op::Sub) => Expr::Negative(Box::new(self.unary()?)),
            Some(_) => self.unary()?,
            None => self.primary()?,
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn primary(&mut self) -> Result<Expr, String> {
        match self.next.take() {
            Some(Token::Value(value)) => {
                self.advance()?;
                Ok(Expr::Value(value))
            }
            Some(Token::Name(name)) => {
                self.advance()?;
                if self.next == Some(Token::Op("(")) { self.arguments(name) } else { Ok(Expr::Name(name)) }
            }
            Some(Token::Op("(")) => {
                self.advance()?;
                let expr = self.sum()?;
                self.expect(")")?;
                Ok(expr)
            }
            other => Err(self.found("a value", other.as_ref())),
        }
    }

    fn expect(&mut self, op: &'static str) -> Result<(), String> {
        if self.next == Some(Token::Op(op)) { self.advance() } else { Err(self.found(op, self.next.as_ref())) }
    }

    fn arguments(&mut self, name: String) -> Result<Expr, String> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        while self.next != Some(Token::Op(")")) {
            let Some(Token::Name(argument)) = self.next.take() else {
                return Err("expected arguments by name, as in f(x='text')".into());
            };
            self.advance()?;
            self.expect("=")?;
            arguments.push((argument, self.sum()?));
            if self.next != Some(Token::Op(")")) {
                self.expect(",")?;
            }
        }
        self.expect(")")?;
        Ok(Expr::Call(name, arguments))
    }
}
