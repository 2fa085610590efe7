//! Credentials that the host gives to the library, by name. Arguments are text that is written to files and logs, so the
//! host keeps credentials here and passes their name, in the hidden option [`OPTION`].
//!
//! They live until they are released. Stores that were opened with them have copies. The name contains the process
//! number: a pipeline that is sent to another process can't take credentials along.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::knows;
use super::options::is_secret;
use dali_zarr_base::error::{Error, Result};

/// The hidden option with the name of kept credentials.
pub const OPTION: &str = "_credentials";

/// Names and values of options.
type Options = Vec<(String, String)>;

static KEPT: Mutex<BTreeMap<String, Arc<Options>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Keeps credentials: a JSON object of options of the crate object_store that are secret. Returns their name.
///
/// # Errors
/// [`Error::value`] for other text, and for options that aren't secret. Nothing of the values is repeated.
pub fn keep(json: &str) -> Result<String> {
    let parsed = serde_json::from_str::<BTreeMap<String, String>>(json).ok().filter(|found| !found.is_empty());
    let parsed =
        parsed.ok_or_else(|| Error::value("credentials: expected a JSON object of text by names of options"))?;
    let mut options = Options::new();
    for (name, value) in parsed {
        let name = name.to_ascii_lowercase();
        let is_known = ["s3://b", "gs://b", "az://b"].iter().any(|kind| knows(kind, &name));
        if !is_known || !is_secret(&name) {
            return Err(Error::value(format!(
                "credentials: expected names of secret options, such as aws_secret_access_key, but found {name:?}"
            )));
        }
        options.push((name, value));
    }
    let name = format!("credentials:{}:{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), Arc::new(options));
    Ok(name)
}

/// Releases credentials. Does nothing if there are none of this name.
pub fn release(name: &str) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
}

/// Divides options into the kept credentials that the hidden option names, as far as stores of the kind of `location`
/// know them, and the others.
///
/// # Errors
/// [`Error::value`] if there are no credentials of this name.
pub(super) fn take(location: &str, options: &[(String, String)]) -> Result<(Options, Options)> {
    let (hidden, others): (Options, Options) = options.iter().cloned().partition(|(name, _)| name == OPTION);
    let mut found = Options::new();
    for (_, name) in hidden {
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        let kept = kept.ok_or_else(|| {
            Error::value(format!(
                "storage_options: the credentials of the store that was given aren't in this process's memory (process {}): they \
                 don't travel with a pipeline; give the store there again, or its URL with credentials in the environment",
                std::process::id()
            ))
        })?;
        found.extend(kept.iter().filter(|(name, _)| knows(location, name)).cloned());
    }
    Ok((found, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_kept_until_they_are_released() {
        let name = keep(r#"{"AWS_Access_Key_Id": "A", "aws_secret_access_key": "hunter2"}"#).unwrap();
        let options = [("timeout", "1s"), (OPTION, name.as_str())].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let (found, others) = take("s3://bucket/a", &options).unwrap();
        let expected = [("aws_access_key_id", "A"), ("aws_secret_access_key", "hunter2")];
        assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(others, [("timeout".to_owned(), "1s".to_owned())]);
        assert_eq!(take("https://host/a", &options).unwrap().0, [], "they are for stores of their kind");
        release(&name);
        release(&name);
        let error = take("s3://bucket/a", &options).unwrap_err();
        assert!(error.message().contains("aren't in this process's memory"), "{error}");
    }

    #[test]
    fn only_secrets_are_credentials() {
        for wrong in ["", "[]", "{}", r#"{"aws_region": "hunter2"}"#, r#"{"key": 1}"#, r#"{"nonsense_key": "hunter2"}"#]
        {
            let error = keep(wrong).unwrap_err();
            assert!(error.message().starts_with("credentials: ") && !error.message().contains("hunter2"), "{error}");
        }
    }
}
