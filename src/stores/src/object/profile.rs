//! Credentials of a profile in AWS's shared files. The crate object_store doesn't read them.

use std::io::Read;
use std::path::PathBuf;

use configparser::ini::Ini;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};

use super::options::is_true;
use dali_zarr_base::error::{Error, Result};

/// Most bytes that are read of a file.
const MAX_FILE: u64 = 1 << 20;

/// Adds region, endpoint and keys of the profile that `AWS_PROFILE` names (or of the default one). Values that the
/// environment or the options set are kept. Unsigned requests get no keys.
///
/// # Errors
/// [`Error::value`] if keys are needed, and the named profile doesn't exist or has none.
pub(super) fn apply(builder: AmazonS3Builder) -> Result<AmazonS3Builder> {
    let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let home = std::env::home_dir();
    let file = |name: &str, default: &str| {
        let path = env(name).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".aws").join(default)))?;
        let mut text = String::new();
        std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let files = Files {
        credentials: parsed(&file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default(), "credentials")?,
        config: parsed(&file("AWS_CONFIG_FILE", "config").unwrap_or_default(), "config")?,
    };
    with_files(builder, env("AWS_PROFILE").as_deref(), &files)
}

struct Files {
    credentials: Ini,
    config: Ini,
}

/// Parses AWS's shared file `name`. As botocore reads it: a `#` within a line belongs to the value, and indented lines
/// to the value before.
fn parsed(text: &str, name: &str) -> Result<Ini> {
    let mut ini = Ini::new_cs();
    ini.set_inline_comment_symbols(Some(&[]));
    ini.set_multiline(true);
    ini.read(text.to_owned()).map_err(|e| {
        Error::value(format!(
            "expected AWS's shared {name} file to have [sections] and lines key=value, but found another: {e}"
        ))
    })?;
    Ok(ini)
}

fn with_files(mut builder: AmazonS3Builder, named: Option<&str>, files: &Files) -> Result<AmazonS3Builder> {
    let name = named.unwrap_or("default");
    let header = if name == "default" { name.to_owned() } else { format!("profile {name}") };
    let value = |key: &str| files.credentials.get(name, key).or_else(|| files.config.get(&header, key));
    let set = |builder: &AmazonS3Builder, key: Key| builder.get_config_value(&key).is_some();
    if let Some(region) = value("region")
        && !set(&builder, Key::Region)
        && !set(&builder, Key::DefaultRegion)
    {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = value("endpoint_url")
        && !set(&builder, Key::Endpoint)
    {
        builder = builder.with_endpoint(endpoint);
    }
    let unsigned = builder.get_config_value(&Key::SkipSignature).is_some_and(|value| is_true(&value));
    if set(&builder, Key::AccessKeyId) || unsigned {
        return Ok(builder);
    }
    match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            Ok(match value("aws_session_token") {
                Some(token) => builder.with_token(token),
                None => builder,
            })
        }
        _ if named.is_some() => Err(Error::value(format!(
            "AWS_PROFILE: expected a profile {name:?} with aws_access_key_id and aws_secret_access_key in the shared \
             credentials file, but found none; profiles with SSO, roles or processes aren't read: export their keys \
             to the environment"
        ))),
        // The machine or container may have a role.
        _ => Ok(builder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let credentials = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n; note\n\n[lab]\n\
                           aws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E=\n[sso]\n";
        let config = "[profile lab]\nregion = eu-north-1\nendpoint_url = https://s3.lab\n";
        Files { credentials: parsed(credentials, "credentials").unwrap(), config: parsed(config, "config").unwrap() }
    }

    fn found(builder: &AmazonS3Builder) -> [Option<String>; 4] {
        [Key::AccessKeyId, Key::SecretAccessKey, Key::Token, Key::Region].map(|k| builder.get_config_value(&k))
    }

    #[test]
    fn profiles() {
        let apply = |named| with_files(AmazonS3Builder::new(), named, &files());
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(found(&apply(None).unwrap())[..3], [some("A"), some("B"), None]);
        assert_eq!(found(&apply(Some("lab")).unwrap()), [some("C"), some("D"), some("E="), some("eu-north-1")]);
        assert_eq!(apply(Some("lab")).unwrap().get_config_value(&Key::Endpoint), some("https://s3.lab"));
        for missing in ["sso", "nobody"] {
            assert!(apply(Some(missing)).unwrap_err().message().contains(missing));
        }
        let own = AmazonS3Builder::new().with_access_key_id("X").with_secret_access_key("Y");
        assert_eq!(
            found(&with_files(own, Some("nobody"), &files()).unwrap())[0],
            some("X"),
            "the environment is first"
        );
    }

    /// What Python's `configparser` finds, with which botocore reads the files.
    #[test]
    fn unusual_files() {
        let found = |text: &str, key: &str| parsed(text, "config").unwrap().get("default", key);
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(found("[default]\nregion = a#b;c\n", "region"), some("a#b;c"));
        assert_eq!(found("[ default ]\r\n  region: a = b\r\n  # x\r\n\r\n  output\n", "region"), some("a = b"));
        // A group of other services' values.
        let nested = "[default]\ns3 =\n  endpoint_url = x\n\nregion = r\n[other]\nregion = s\n[default]\noutput = t";
        assert_eq!(["endpoint_url", "region", "output"].map(|key| found(nested, key)), [None, some("r"), some("t")]);
        assert_eq!(found("", "region"), None);
        for wrong in ["[default\nregion = x", "[default]\n = x"] {
            let error = parsed(wrong, "config").unwrap_err();
            assert!(error.message().contains("shared config file") && error.message().contains("line "), "{error}");
        }
    }
}
