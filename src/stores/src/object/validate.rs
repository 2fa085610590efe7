//! Checks option values on which the crate object_store would panic when it makes a request.

use url::Url;

use super::options::takes;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::service::Service;

/// Checks the options of a store, and the variables of the environment for stores of its kind.
///
/// # Errors
/// [`Error::value`], with the option's or variable's name.
pub(super) fn check(service: Option<Service>, options: &[(String, String)]) -> Result<()> {
    for (name, value) in options {
        check_value(name, value).map_err(|e| Error::value(format!("storage_options: {name}: {e}")))?;
    }
    let Some((service, prefix)) = service.and_then(|s| Some((s, s.environment()?))) else { return Ok(()) };
    for (name, value) in std::env::vars_os() {
        let (Some(name), Some(value)) = (name.to_str().filter(|n| n.starts_with(prefix)), value.to_str()) else {
            continue;
        };
        let lower = name.to_ascii_lowercase();
        // Other variables belong to other programs, such as AWS_S3_US_EAST_1_REGIONAL_ENDPOINT.
        if !value.is_empty() && takes(service, &lower) {
            let looked = check_value(&lower, value);
            looked.map_err(|e| Error::value(format!("the environment's {name}: {e}")))?;
        }
    }
    Ok(())
}

/// Checks one value. The error doesn't repeat it where it may be secret.
fn check_value(name: &str, value: &str) -> Result<(), String> {
    let is_url = ["endpoint", "endpoint_url", "endpoint_url_s3", "base_url", "blob_storage_url"];
    if is_url.iter().any(|end| name.ends_with(end)) && !name.contains("use_") {
        let url = Url::parse(value).ok();
        let good =
            url.is_some_and(|u| matches!(u.scheme(), "http" | "https") && u.host_str().is_some_and(|h| !h.is_empty()));
        if !good || value.contains(char::is_whitespace) {
            let found = if value.contains('@') { "another text".to_owned() } else { format!("{value:?}") };
            return Err(format!("expected a URL such as \"http://host:9000\", but found {found}"));
        }
    }
    // These values become parts of host names and headers.
    let is_plain = name.ends_with("region")
        || ["access_key_id", "secret_access_key", "session_token", "bearer_token"]
            .iter()
            .any(|end| name.ends_with(end));
    if is_plain && !value.chars().all(|c| c.is_ascii_graphic()) {
        return Err(
            "expected letters, digits and signs of ASCII, but found a space, the end of a line or another character"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_break_requests_are_refused() {
        for (name, value) in [
            ("aws_endpoint", "localhost:9000"),
            ("aws_endpoint", "127.0.0.1:9000"),
            ("endpoint_url", "minio"),
            ("aws_endpoint", "http://host/a b"),
            ("google_base_url", "localhost:9000"),
            ("azure_storage_endpoint", "localhost:10000"),
            ("aws_region", "eu central"),
            ("aws_session_token", "FwoG\n"),
        ] {
            let error = check_value(name, value).unwrap_err();
            assert!(error.starts_with("expected") && !error.contains("FwoG"), "{error}");
        }
        for (name, value) in [
            ("aws_endpoint", "http://localhost:9000"),
            ("azure_use_fabric_endpoint", "true"),
            ("aws_region", "us-east-1"),
            ("aws_secret_access_key", "a/b+c="),
            ("proxy_url", "proxy:8080"),
        ] {
            assert_eq!(check_value(name, value), Ok(()));
        }
    }
}
