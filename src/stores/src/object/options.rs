//! `storage_options`: which belong to the client library, which to this reader, and which are refused because they are
//! secret.

use std::time::Duration;

use object_store::ClientConfigKey;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use crate::retry::Policy;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::service::Service;

/// Whether object_store takes the value of an option for true. It keeps the text as it was given.
pub(super) fn is_true(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Options of this reader and of Icechunk repositories. An unknown name is compared with these and with [`OF_CLIENTS`].
pub(super) const OWN: &[&str] =
    &["max_retries", "retry_timeout", "hedge", "missing_status", "branch", "tag", "snapshot_id", "virtual_chunks"];
/// Options of the crate object_store for reading that aren't secret. The crate has no list of its own.
pub(super) const OF_CLIENTS: &[&str] = &[
    "allow_http",
    "allow_invalid_certificates",
    "aws_allow_http",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_sts",
    "aws_metadata_endpoint",
    "aws_region",
    "aws_request_payer",
    "aws_role_arn",
    "aws_role_session_name",
    "aws_s3_express",
    "aws_skip_signature",
    "aws_virtual_hosted_style_request",
    "aws_web_identity_token_file",
    "azure_federated_token_file",
    "azure_skip_signature",
    "azure_storage_account_name",
    "azure_storage_authority_host",
    "azure_storage_client_id",
    "azure_storage_endpoint",
    "azure_storage_tenant_id",
    "azure_storage_use_emulator",
    "azure_use_azure_cli",
    "azure_use_fabric_endpoint",
    "connect_timeout",
    "endpoint",
    "google_application_credentials",
    "google_base_url",
    "google_service_account",
    "google_skip_signature",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "region",
    "skip_signature",
    "timeout",
    "user_agent",
];

/// What this reader's own options for remote stores ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnOptions {
    pub policy: Policy,
    /// Statuses that mean "there is no such key", beside 404.
    pub missing: Vec<u16>,
}

/// Divides `options` into this reader's own, and those of the client library with lower-case names.
///
/// # Errors
/// [`Error::value`] for a secret, and for a wrong value of an own option.
pub(super) fn divide(options: &[(String, String)]) -> Result<(OwnOptions, Vec<(String, String)>)> {
    let mut own = OwnOptions::default();
    let policy = &mut own.policy;
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
            "missing_status" => own.missing = statuses(name, value)?,
            "timeout" => {
                policy.request = duration(name, value)?;
                rest.push((lower, value.clone()));
            }
            _ => rest.push((lower, value.clone())),
        }
    }
    Ok((own, rest))
}

/// Reads statuses with commas between them. Those that a request may get for a key that exists are refused: a failed
/// condition (412), a range (416), and those after which it is repeated (408, 429, and all from 500 on).
fn statuses(name: &str, value: &str) -> Result<Vec<u16>> {
    let one = |text: &str| {
        let status = text.trim().parse().ok();
        status.filter(|status| (400..500).contains(status) && !matches!(status, 408 | 412 | 416 | 429))
    };
    let all: Option<Vec<u16>> = value.split(',').map(one).collect();
    all.ok_or_else(|| {
        wrong(name, "HTTP statuses such as \"403\" or \"403,410\" (of 400 to 499 without 408, 412, 416 and 429)", value)
    })
}

fn wrong(name: &str, expected: &str, found: &str) -> Error {
    Error::value(format!("storage_options: {name}: expected {expected}, but found {found:?}"))
}

fn duration(name: &str, value: &str) -> Result<Duration> {
    let parsed = humantime::parse_duration(value).ok().filter(|d| !d.is_zero());
    parsed.ok_or_else(|| wrong(name, "a time such as \"30s\"", value))
}

/// Whether the value of an option with this lower-case name is a secret.
pub(super) fn is_secret(lower: &str) -> bool {
    // The paths of files with secrets, and the names of keys that servers keep, aren't secret.
    let harmless = lower.ends_with("_file")
        || lower.ends_with("_path")
        || lower.ends_with("_url")
        || lower.contains("kms_key_id")
        || lower.contains("bucket_key");
    let secret = ["key", "secret", "token", "sas", "password", "passwd"];
    secret.iter().any(|s| lower.contains(s)) && !harmless
}

/// Refuses secrets: arguments are serialised with the pipeline and appear in logs and notebooks.
fn refuse_secret(name: &str, lower: &str, value: &str) -> Result<()> {
    if is_secret(lower) {
        return Err(Error::value(format!(
            "storage_options: {name} is a secret, and arguments are serialised with the pipeline; set it in the \
             environment (as AWS_SECRET_ACCESS_KEY, for example), or use a profile or a role"
        )));
    }
    let has_user = url::Url::parse(value).is_ok_and(|url| url.password().is_some() || !url.username().is_empty());
    // The client library also takes URLs without a scheme.
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

/// Whether stores of the kind of `location` have an option `name`.
pub(crate) fn knows(location: &str, name: &str) -> bool {
    let scheme = location.split("://").next().unwrap_or_default().to_ascii_lowercase();
    Service::of(&scheme).is_some_and(|service| takes(service, name))
}

/// Whether stores of this service have an option `name`.
pub(super) fn takes(service: Service, name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    match service {
        Service::S3 => name.parse::<AmazonS3ConfigKey>().is_ok(),
        Service::Google => name.parse::<GoogleConfigKey>().is_ok(),
        Service::Azure => name.parse::<AzureConfigKey>().is_ok(),
        Service::Http => name.parse::<ClientConfigKey>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(options: &[(&str, &str)]) -> Result<(OwnOptions, Vec<(String, String)>)> {
        divide(&options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn own_options_and_those_of_the_client_library() {
        let (own, rest) = divided(&[
            ("AWS_Region", "eu-central-1"),
            ("max_retries", "2"),
            ("retry_timeout", "1m"),
            ("timeout", "500ms"),
            ("hedge", "false"),
            ("Missing_Status", "403, 410"),
        ])
        .unwrap();
        let (request, total) = (Duration::from_millis(500), Duration::from_secs(60));
        let policy = Policy { request, total, tries: 3, hedge: false, ..Policy::default() };
        assert_eq!(own, OwnOptions { policy, missing: vec![403, 410] });
        assert_eq!(
            rest,
            [("aws_region", "eu-central-1"), ("timeout", "500ms")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        assert!(divided(&[]).unwrap().0.missing.is_empty(), "no status but 404");
        for (name, value) in
            [("max_retries", "-1"), ("retry_timeout", "soon"), ("timeout", "0s"), ("hedge", "2")].into_iter().chain(
                ["", "403,", "404;403", "200", "500", "429", "-1", "[403]", "all"]
                    .map(|status| ("missing_status", status)),
            )
        {
            assert!(divided(&[(name, value)]).unwrap_err().message().contains(name));
        }
    }

    #[test]
    fn names_to_compare_with_are_options() {
        let kinds = ["s3://b", "gs://b", "az://c", "https://host"];
        for name in OF_CLIENTS {
            assert!(kinds.iter().any(|kind| super::super::knows(kind, name)), "{name}");
        }
        for name in OWN.iter().chain(OF_CLIENTS) {
            assert!(refuse_secret(name, name, "1").is_ok(), "{name}");
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
