//! The services of object stores, by the scheme of a URL. All that follows from a scheme begins here.

/// A kind of object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Amazon S3, and what speaks its protocol: `s3`.
    S3,
    /// Google Cloud Storage: `gs`.
    Google,
    /// Azure Blob Storage and Data Lake Storage: `az`, `abfs`, `abfss`.
    Azure,
    /// Any web server: `http`, `https`.
    Http,
}

impl Service {
    /// Returns the service of URLs with this scheme, in lower case; `None` if no store is opened by it.
    #[must_use]
    pub fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" => Some(Self::S3),
            "gs" => Some(Self::Google),
            "az" | "abfs" | "abfss" => Some(Self::Azure),
            "http" | "https" => Some(Self::Http),
            _ => None,
        }
    }

    /// Returns the scheme that other programs write so; `None` if it is nobody's other name.
    #[must_use]
    pub fn usual(scheme: &str) -> Option<(&'static str, Self)> {
        match scheme {
            "s3a" | "s3n" => Some(("s3", Self::S3)),
            "gcs" => Some(("gs", Self::Google)),
            _ => None,
        }
    }

    /// The service's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Google => "Google Cloud Storage",
            Self::Azure => "Azure",
            Self::Http => "HTTP",
        }
    }

    /// The beginning of the environment's variables for it; `None` if it reads none.
    #[must_use]
    pub fn environment(self) -> Option<&'static str> {
        match self {
            Self::S3 => Some("AWS_"),
            Self::Google => Some("GOOGLE_"),
            Self::Azure => Some("AZURE_"),
            Self::Http => None,
        }
    }

    /// Whether the user in its URLs is no user, but the container: `abfss://container@account/path`.
    #[must_use]
    pub fn user_is_container(self) -> bool {
        self == Self::Azure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_no_schemes_of_their_own() {
        for other in ["s3a", "s3n", "gcs"] {
            let (scheme, service) = Service::usual(other).unwrap();
            assert_eq!((Service::of(other), Service::of(scheme)), (None, Some(service)));
        }
        for scheme in ["", "S3", "file", "ftp", "hf"] {
            assert_eq!((Service::of(scheme), Service::usual(scheme)), (None, None), "{scheme}");
        }
    }
}
