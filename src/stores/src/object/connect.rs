//! Opens an object store from a URL and options: its kind, its credentials, its options.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpConnector;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use super::client::Connector;
use super::names::ObjectName;
use super::options::{OF_CLIENTS, OWN, is_secret};
use super::{profile, validate};
use crate::percent::percent_decoded;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::service::Service;

/// An open object store, and what its kind can do.
pub(super) struct Connected {
    pub store: Arc<dyn ObjectStore>,
    /// Path that is put before all keys, with a slash at its end; empty if there is none.
    pub prefix: String,
    /// Whether it can read the last bytes of an object of unknown size.
    pub suffixes: bool,
    /// The same store, if it can list keys.
    pub lists: Option<Arc<dyn PaginatedListStore>>,
}

/// Turns off retries by the library. [`crate::retry`] retries: it counts tries, and resumes broken bodies.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Opens the store at `location`; nothing is sent yet.
///
/// `options` may have kept credentials. Then the environment's credentials don't count.
///
/// # Errors
/// [`Error::value`] for unknown URLs and options, and for wrong values.
pub(super) fn connect(
    location: &str,
    options: &[(String, String)],
    connector: Connector<impl HttpConnector>,
) -> Result<Connected> {
    let wrong = |found: &dyn Display| Error::value(found.to_string()).at(Site::store(location));
    let location = &without_controls(location);
    let url = Url::parse(location).map_err(|e| wrong(&format!("expected a URL, but found {e}")))?;
    let service = Service::of(url.scheme());
    let has_user = !url.username().is_empty() && !service.is_some_and(Service::user_is_container);
    if has_user || url.password().is_some() {
        return Err(wrong(&"expected a URL without user and password; set credentials in the environment"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong(&"expected a URL without query and fragment, since keys are appended to it"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(wrong(&"expected a URL with a bucket, container or host after the scheme"));
    }
    validate::check(service, options)?;
    let prefix = percent_decoded(url.path()).into_string();
    let prefix = prefix.map_err(|_| wrong(&"expected a path in UTF-8"))?;
    let prefix = prefix.strip_prefix('/').unwrap_or(&prefix);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    ObjectName::new(prefix).map_err(|e| wrong(&e))?;
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    fn lists<S: ObjectStore + PaginatedListStore>(store: S, prefix: String, suffixes: bool) -> Connected {
        let store = Arc::new(store);
        Connected { store: Arc::clone(&store) as _, prefix, suffixes, lists: Some(store) }
    }
    let has_credentials = options.iter().any(|(name, _)| is_secret(name));
    let Some(service) = service else { return Err(wrong(&unknown(url.scheme()))) };
    match service {
        Service::S3 => {
            let mut builder = if has_credentials {
                without_credentials("AWS_", AmazonS3Builder::new(), AmazonS3Builder::with_config)
            } else {
                AmazonS3Builder::from_env()
            };
            builder = builder.with_url(location).with_retry(no_retries());
            for (key, value) in keyed::<AmazonS3ConfigKey>(service, options)? {
                builder = builder.with_config(key, value);
            }
            let credentials = connector.credentials();
            let store = profile::apply(builder)?.with_http_connector(connector).build().map_err(|e| wrong(&e))?;
            let _ = credentials.set(Arc::clone(store.credentials()));
            Ok(lists(store, prefix, true))
        }
        Service::Google => {
            let mut builder = if has_credentials {
                let new = GoogleCloudStorageBuilder::new();
                without_credentials("GOOGLE_", new, GoogleCloudStorageBuilder::with_config)
            } else {
                GoogleCloudStorageBuilder::from_env()
            };
            builder = builder.with_url(location).with_retry(no_retries());
            for (key, value) in keyed::<GoogleConfigKey>(service, options)? {
                builder = builder.with_config(key, value);
            }
            Ok(lists(builder.with_http_connector(connector).build().map_err(|e| wrong(&e))?, prefix, true))
        }
        Service::Azure => {
            let mut builder = if has_credentials {
                let new = MicrosoftAzureBuilder::new();
                without_credentials("AZURE_", new, MicrosoftAzureBuilder::with_config)
            } else {
                MicrosoftAzureBuilder::from_env()
            };
            builder = builder.with_url(location).with_retry(no_retries());
            for (key, value) in keyed::<AzureConfigKey>(service, options)? {
                builder = builder.with_config(key, value);
            }
            Ok(lists(builder.with_http_connector(connector).build().map_err(|e| wrong(&e))?, prefix, false))
        }
        Service::Http => {
            let base = &url[..url::Position::BeforePath];
            let mut builder = HttpBuilder::new().with_url(base).with_retry(no_retries());
            if url.scheme() == "http" {
                builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            }
            for (key, value) in keyed::<ClientConfigKey>(service, options)? {
                builder = builder.with_config(key, value);
            }
            let store = builder.with_http_connector(connector).build().map_err(|e| wrong(&e))?;
            Ok(Connected { store: Arc::new(store), prefix, suffixes: true, lists: None })
        }
    }
}

/// Says what to write instead of a scheme by which no store is opened.
fn unknown(scheme: &str) -> String {
    match Service::usual(scheme) {
        Some((usual, service)) => {
            format!("expected the scheme \"{usual}\" for {}; write {usual}://", service.name())
        }
        None => format!(
            "expected a local directory, or a URL with s3, gs, az, abfs, abfss, http or https, but found the scheme \
             {scheme:?}; mount or copy the store to a local path"
        ),
    }
}

/// Adds the settings of the environment to a builder, without those that say who asks: keys of another account would be
/// mixed with kept ones, or be taken instead of them.
fn without_credentials<B, K: FromStr>(prefix: &str, builder: B, with: impl Fn(B, K, String) -> B) -> B {
    std::env::vars_os().fold(builder, |builder, (name, value)| {
        let (Some(name), Ok(value)) = (name.to_str().filter(|name| name.starts_with(prefix)), value.into_string())
        else {
            return builder;
        };
        let lower = name.to_ascii_lowercase();
        let who = ["skip_signature", "service_account", "application_credentials", "client_id", "role", "identity"];
        if is_secret(&lower) || who.iter().any(|part| lower.contains(part)) {
            return builder;
        }
        match lower.parse() {
            Ok(key) => with(builder, key, value),
            Err(_) => builder,
        }
    })
}

/// Parses the names of options of the crate object_store. Some options have several names.
///
/// # Errors
/// If a name is unknown, or an option has two values.
fn keyed<K: FromStr + PartialEq>(service: Service, options: &[(String, String)]) -> Result<Vec<(K, &str)>> {
    let kind = service.name();
    let mut found: Vec<(K, &str)> = Vec::new();
    for (name, value) in options {
        let key = key::<K>(kind, name)?;
        if let Some(i) = found.iter().position(|(other, before)| *other == key && before != value) {
            return Err(Error::value(format!(
                "storage_options: {} and {name} are the same option of {kind} stores, with two values; give one",
                options[i].0
            )));
        }
        found.push((key, value));
    }
    Ok(found)
}

/// Parses the name of an option of the crate object_store.
fn key<K: FromStr>(kind: &str, name: &str) -> Result<K> {
    name.parse().map_err(|_| {
        let known = OF_CLIENTS.iter().filter(|other| other.parse::<K>().is_ok()).chain(OWN);
        Error::value(format!(
            "storage_options: {name} isn't an option of {kind} stores; the names are those of the object_store crate, \
             max_retries, retry_timeout, hedge and missing_status, and for Icechunk repositories branch, tag, snapshot_id and virtual_chunks"
        ))
        .unknown(Some(name), known.map(|&other| other.to_owned()).collect())
    })
}

/// Encodes control characters and spaces at the end, which the parser of URLs would drop.
fn without_controls(location: &str) -> String {
    let kept = location.trim_end_matches(' ');
    let mut encoded: String = kept.chars().fold(String::new(), |mut encoded, c| {
        if c.is_ascii_control() {
            encoded += &format!("%{:02X}", c as u32);
        } else {
            encoded.push(c);
        }
        encoded
    });
    encoded += &"%20".repeat(location.len() - kept.len());
    encoded
}
