//! `storage_options`: which are the store's, which are this reader's, and which must not be there because they are secret.

use std::time::Duration;

use crate::error::{Error, Result};

/// How patient requests are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// A request that takes longer has failed.
    pub request: Duration,
    /// No request is repeated when this much time has passed without the bytes that it allows for (see `transfer`).
    pub total: Duration,
    /// Requests in a row that may fail before it is an error.
    pub tries: u32,
    /// The first pause between two of them; doubled from failure to failure.
    pub pause: Duration,
    /// Whether slow requests are raced by second ones.
    pub hedge: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            total: Duration::from_secs(180),
            tries: 11,
            pause: Duration::from_millis(100),
            hedge: true,
        }
    }
}

impl Policy {
    /// That of [`Phase::Building`](crate::store::Phase), whatever the options say.
    pub fn building(&self) -> Self {
        Self { total: self.total.min(Duration::from_secs(30)), tries: self.tries.min(5), ..self.clone() }
    }
}

/// Divides `options` into this reader's own and those of the store, whose names and values the store knows.
///
/// # Errors
/// [`Error::value`] for a secret, and for a value of ours that makes no sense.
pub(super) fn divide(options: &[(String, String)]) -> Result<(Policy, Vec<(String, String)>)> {
    let mut policy = Policy::default();
    let mut rest = Vec::new();
    for (name, value) in options {
        let lower = name.trim().to_ascii_lowercase();
        refuse_secret(name, &lower, value)?;
        match lower.as_str() {
            "max_retries" => {
                let retries: u32 = value.parse().map_err(|_| wrong(name, "a whole number", value))?;
                policy.tries = retries.saturating_add(1);
            }
            "retry_timeout" => policy.total = duration(name, value)?,
            "hedge" => policy.hedge = value.parse().map_err(|_| wrong(name, "\"true\" or \"false\"", value))?,
            "timeout" => {
                policy.request = duration(name, value)?;
                rest.push((lower, value.clone()));
            }
            _ => rest.push((lower, value.clone())),
        }
    }
    Ok((policy, rest))
}

fn wrong(name: &str, expected: &str, found: &str) -> Error {
    Error::value(format!("storage_options: {name}: expected {expected}, but found {found:?}"))
}

fn duration(name: &str, value: &str) -> Result<Duration> {
    let parsed = humantime::parse_duration(value).ok().filter(|d| !d.is_zero());
    parsed.ok_or_else(|| wrong(name, "a time such as \"30s\"", value))
}

/// Arguments are serialised with the pipeline, and stand in logs and notebooks: whoever reads those must not get access.
fn refuse_secret(name: &str, lower: &str, value: &str) -> Result<()> {
    // Names of files with secrets, and of keys that servers keep, aren't secret.
    let harmless = lower.ends_with("_file")
        || lower.ends_with("_path")
        || lower.ends_with("_url")
        || lower.contains("kms_key_id")
        || lower.contains("bucket_key");
    let secret = ["key", "secret", "token", "sas", "password", "passwd"];
    if secret.iter().any(|s| lower.contains(s)) && !harmless {
        return Err(Error::value(format!(
            "storage_options: {name} is a secret, and arguments are serialised with the pipeline; set it in the \
             environment (as AWS_SECRET_ACCESS_KEY, for example), or use a profile or a role"
        )));
    }
    let has_user = url::Url::parse(value).is_ok_and(|url| url.password().is_some() || !url.username().is_empty());
    // URLs are also taken without their scheme.
    let is_url = ["url", "endpoint", "proxy"].iter().any(|u| lower.contains(u));
    if has_user || (is_url && value.contains('@')) {
        return Err(Error::value(format!(
            "storage_options: {name}: expected a URL without user and password, since arguments are serialised with \
             the pipeline; set it in the environment"
        )));
    }
    if value.trim_start().starts_with('{') || value.contains("PRIVATE KEY") {
        return Err(Error::value(format!(
            "storage_options: {name}: expected no document with credentials, since arguments are serialised with the \
             pipeline; give the path of a file"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(options: &[(&str, &str)]) -> Result<(Policy, Vec<(String, String)>)> {
        divide(&options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn own_and_others() {
        let (policy, rest) = divided(&[
            ("AWS_Region", "eu-central-1"),
            ("max_retries", "2"),
            ("retry_timeout", "1m"),
            ("timeout", "500ms"),
            ("hedge", "false"),
        ])
        .unwrap();
        let (request, total) = (Duration::from_millis(500), Duration::from_secs(60));
        let expected = Policy { request, total, tries: 3, hedge: false, ..Policy::default() };
        assert_eq!(policy, expected);
        assert_eq!(
            rest,
            [("aws_region", "eu-central-1"), ("timeout", "500ms")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        for (name, value) in [("max_retries", "-1"), ("retry_timeout", "soon"), ("timeout", "0s"), ("hedge", "2")] {
            assert!(divided(&[(name, value)]).unwrap_err().message().contains(name));
        }
    }

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for name in [
            "aws_access_key_id",
            "AWS_SECRET_ACCESS_KEY",
            "session_token",
            "azure_storage_sas_key",
            "azure_storage_sas_token",
            "account_key",
            "client_secret",
            "google_service_account_key",
            "bearer_token",
            "password",
            "aws_sse_customer_key_base64",
        ] {
            let error = divided(&[(name, "hunter2")]).unwrap_err();
            assert!(error.message().contains("is a secret") && !error.message().contains("hunter2"), "{error}");
        }
        for (name, value) in [
            ("proxy_url", "http://me:hunter2@proxy:80"),
            ("proxy_url", "me:hunter2@proxy:80"),
            ("Proxy_URL", "hunter2@proxy"),
            ("proxy_url", "//me:hunter2@proxy"),
            ("aws_endpoint", "me:hunter2@host:9000"),
            ("aws_endpoint_url_s3", "https://me:hunter2@host"),
            ("google_base_url", "me:hunter2@host"),
            ("azure_storage_endpoint", "hunter2@host"),
        ] {
            let error = divided(&[(name, value)]).unwrap_err();
            assert!(error.message().contains("expected a URL without user and password"), "{error}");
            assert!(!error.message().contains("hunter2") && error.message().contains(name), "{error}");
        }
        let error = divided(&[("proxy_url", "{\"private_key\": \"hunter2\"}")]).unwrap_err();
        assert!(error.message().contains("no document with credentials") && !error.message().contains("hunter2"));
        for (name, value) in [
            ("aws_web_identity_token_file", "/run/token"),
            ("aws_sse_kms_key_id", "alias/x"),
            ("google_service_account_path", "/a.json"),
            ("aws_endpoint", "http://localhost:9000"),
            ("proxy_url", "proxy:80"),
            ("skip_signature", "true"),
        ] {
            assert!(divided(&[(name, value)]).is_ok(), "{name}");
        }
    }
}
