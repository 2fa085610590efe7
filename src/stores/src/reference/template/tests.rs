//! Tests that templates are rendered as by Jinja 3, and that hostile ones end soon. The expected texts are Jinja's.

use super::*;

fn names() -> Names {
    let templates = [("u", "server"), ("f", "<{{c}}>"), ("twice", "{{c}}{{c}}")];
    Names::new(templates.map(|(name, text)| (name.to_owned(), text.to_owned())).into()).unwrap()
}

fn rendered(text: &str) -> Result<String> {
    let values = BTreeMap::from([("i", 7)]);
    Template::parse(text, &names())?.render(Value::from(values), &mut Budget::new(FUEL))
}

#[test]
fn as_jinja_renders_them() {
    for (text, expected) in [
        ("", ""),
        ("plain } { text", "plain } { text"),
        ("http://{{u}}_{{ i }}", "http://server_7"),
        ("{{(i + 1) * 1000}}", "8000"),
        ("{{ 2 + 3 * 4 }}", "14"),
        ("{{ 2 ** 3 ** 2 }}", "64"),
        ("{{ -2 ** 2 }}", "4"),
        ("{{ 10 - 3 - 2 }}", "5"),
        (
            "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7 // -2 }} {{ -6 % -3 }} {{ 6 // -3 }}",
            "-4 2 -4 -2 3 0 -2",
        ),
        ("{{ 1 + 2 ~ 3 }}", "error"),
        ("{{ i ~ '-' ~ u }}", "7-server"),
        ("{{ 'a' + \"b\" }}", "ab"),
        ("{{ '%03d' % i }}.{{ '%d%%' % i }}{{ '%3s' % 'x' }}", "007.7%  x"),
        ("{{f(c='text')}}", "<text>"),
        ("{{ f( c = f(c=i + 1), d=2 ) ~ '!' }}", "<<8>>!"),
        ("{{i}}{{i}}\u{e9}{{u}}", "77\u{e9}server"),
        ("{{'}}'}}", "}}"),
        ("a\r\n{{i}}\rb\n\n", "a\n7\nb\n"),
        ("{{i}}\r\n", "7"),
        ("a {{- i -}} b&<", "a7b&<"),
        ("{{ 'a' * 3 }}{{ 'it\\'s' }}", "aaait's"),
        ("{{ 10 ** 30 }}", "1000000000000000000000000000000"),
        ("{{ i if i > 5 else 0 }}", "7"),
    ] {
        match rendered(text) {
            Ok(found) => assert_eq!(found, expected, "{text}"),
            Err(e) => assert_eq!(expected, "error", "{text}: {e}"),
        }
    }
}

#[test]
fn formats() {
    for (text, expected) in [
        ("{{ 'a%sb' % u }}", "aserverb"),
        ("{{ '%d'%i }}{{ \"%4d\"  %  -i }}", "7  -7"),
        ("{{ '%02d' % (i + 1) ~ 'x' }}", "08x"),
        ("{{ '%s' % f(c='(') }}", "<(>"),
        ("{{ '%-3d|' % i }}{{ '%x' % 255 }}", "7  |ff"),
        ("{{ 'a' + '%d' % i }}", "a7"),
        ("{{ '%d' % i * 2 }}", "77"),
        ("{{ '%05d'|format(i) }}", "00007"),
        ("{{ '%% %d' % i }} {{ i % 4 }} '%d' % 3", "% 7 3 '%d' % 3"),
        ("{{ '\u{e9}%d' % i }}{{ 'it\\'s %d' % i }}", "\u{e9}7it's 7"),
        ("{{ 2 * '%d' % i }}", "error"),
        ("{{ '%d' % i ** 2 }}", "error"),
        ("{{ '%d' % }}", "error"),
        ("{{ '%d' % (i }}", "error"),
        ("{{ 'abc' % i }}", "error"),
        ("{{ '%d%d' % i }}", "error"),
        ("{{ '%' % i }}", "error"),
        ("{{ '%d' % u }}", "error"),
        ("{{ '%d %", "error"),
        ("{{ '%99999999999999999999d' % i }}", "error"),
        ("{{ '%999999999d' % i }}", "error"),
        ("{{ '%.999999999d' % i }}", "error"),
    ] {
        match rendered(text) {
            Ok(found) => assert_eq!(found, expected, "{text}"),
            Err(e) => assert_eq!(expected, "error", "{text}: {e}"),
        }
    }
}

#[test]
fn what_is_not_read_is_an_error() {
    let deep = |n| format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n));
    assert_eq!(rendered(&deep(20)).unwrap(), "1");
    for (text, words) in [
        ("{{ i", "unexpected end of input"),
        ("{{", "unexpected end of input"),
        ("{{}}", "unexpected end of variable block"),
        ("{{ i i }}", "unexpected identifier"),
        ("{{ i / 2 }}", "text or an integer"),
        ("{{ 1.5 }}", "but found '.'"),
        ("{{ nothing }}", "but found \"nothing\""),
        ("{{ f }}", "expected arguments for template \"f\""),
        ("{{ f() }}", "or argument in template \"f\""),
        ("{{ f(c=f) }}", "text or a number as c"),
        ("{{ u(c=1) }}", "not callable"),
        ("{{ f('x') }}", "arguments by name"),
        ("{{ i | int }}", "filter int is unknown"),
        ("{{ range(1) }}", "but found \"range\""),
        ("{{ -u }}", "invalid operation"),
        ("{{ i // 0 }}", "unable to calculate 7 // 0"),
        ("{{ 9 ** 9 ** 9 }}", "unable to calculate"),
        ("{{ 2 ** -1 }}", "text or an integer"),
        ("{{ 999999999999999999999999999999999999999999 }}", "integer"),
        ("{{ '%999999999d' % i }}", "less text"),
        ("{% for i in range(9) %}x{% endfor %}", "{% or {#"),
        ("{{ [1] * 99999999 ~ '' }}", "but found '['"),
        ("{{ {'a': 1} }}", "but found '{'"),
        ("{{ 'abc'[1] }}", "but found '['"),
        ("{{ ''.__class__ }}", "but found '.'"),
        ("{{ (1, 2) * 99999999 ~ '' }}", "',' outside of a call"),
        ("{{ 1, 2 }}", "',' outside of a call"),
        ("{{ ('' if i else (1, 2)) ~ f(c=(1, 2)) }}", "',' outside of a call"),
        ("{{ f(c=(1, 2), d=1) }}", "',' outside of a call"),
        ("{{ '%s' % (1, 2) }}", "',' outside of a call"),
        ("{{ i in (1, 2) }}", "',' outside of a call"),
        (&deep(200), "expected a template of Jinja"),
        (&deep(30_000), "shorter expression"),
        (&format!("{{{{ {}1 }}}}", "-".repeat(50_000)), "shorter expression"),
        (&format!("{{{{  {}1 }}}}", "- ".repeat(20_000)), "shorter expression"),
        (&format!("{{{{ 1{} }}}}", "+1".repeat(20_000)), "shorter expression"),
        (&"x".repeat(MAX_TEXT + 1), "at most 65536 bytes"),
    ] {
        let error = rendered(text).unwrap_err();
        assert!(error.message().contains(words), "{}: {error}", shown(text));
    }
}

/// The longest expressions that are read need little of a thread's stack.
#[test]
fn long_expressions_fit_the_stack() {
    for (text, operator, times) in [
        ("", "-", 490),
        ("", "not ", 120),
        ("i", "+i", 240),
        ("i", "~i", 240),
        ("i", "|x", 240),
        ("i", ".a", 240),
        ("f", "()", 240),
        ("", "(", 490),
    ] {
        let text = format!("{{{{ {text}{} }}}}", operator.repeat(times));
        for text in [text.replace(" }}", " i }}"), text] {
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            thread.spawn(move || _ = rendered(&text)).unwrap().join().unwrap();
        }
    }
}

#[test]
fn text_that_doubles_and_calls_without_end_are_bounded() {
    let mut text = "'x'".to_owned();
    for _ in 0..25 {
        text = format!("twice(c={text})");
    }
    let error = rendered(&format!("{{{{ {text} }}}}")).unwrap_err();
    assert!(error.message().contains("at most 65536 bytes"), "{error}");
    let many = Template::parse(&"{{f(c=u)}}".repeat(6000), &names()).unwrap();
    let mut budget = Budget::new(1000);
    let error = (0..1000).find_map(|_| many.render(Value::from(()), &mut budget).err()).unwrap();
    assert!(error.message().contains("less text"), "{error}");
    for hostile in [
        "{{ 'a' * 100000000 }}",
        "{{ ('a' * 99999) * 99999 }}",
        "{{ '%9999999d' % i ~ '%9999999d' % i }}",
        &format!("{{{{ {} }}}}", vec!["'a' * 9999"; 40].join(" ~ ")),
    ] {
        let error = rendered(hostile).unwrap_err();
        let bounds = ["less text", "at most 65536 bytes"];
        assert!(bounds.iter().any(|bound| error.message().contains(bound)), "{hostile}: {error}");
    }
    let percents = format!("{{{{ {} }}}}", "'%d'%(".repeat(10_000));
    assert!(rendered(&percents).is_err());
}

/// Expressions made at random, whole and damaged, give text or an error.
#[test]
fn random_templates_end() {
    let words = [
        "{{", "}}", "{%", "%}", "'%d'", "'a'", "%", "(", ")", "i", "u", "f(c=", "+", "-", "~", "**", "//", "*", "9",
        "99999", "[", "]", " ", "|format(", ".", ",", "{", "}", ":", "for", "in", "endfor", "set", "=", "if", "\\",
        "\"",
    ];
    let mut random = 7u64;
    for _ in 0..5_000 {
        let mut text = "{{".to_owned();
        for _ in 0..12 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            text.push_str(words[(random >> 33) as usize % words.len()]);
        }
        text.push_str("}}");
        if let Ok(made) = rendered(&text) {
            assert!(made.len() <= MAX_URL, "{text}");
        }
    }
}
