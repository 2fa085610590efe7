//! Decides what the failure of a request means: which [`Fault`] it is.

use std::fmt;

use super::client::Answer;
use crate::error::Error;
use crate::store::retry::Fault;

/// Advice for requests without a known answer.
const NO_CREDENTIALS: &str = " (if no credentials were found in the environment, a profile or a role: a public bucket needs the option \
                              skip_signature)";

/// Returns the fault that an error means, given the server's answer if there was one.
pub(super) fn classify(error: object_store::Error, answer: &Answer) -> Fault {
    use object_store::Error as E;
    let said = text(&error);
    let is_unsupported = matches!(error, E::NotSupported { .. } | E::InvalidPath { .. } | E::NotImplemented { .. });
    match *answer {
        // The error codes of S3 and Google, and of Azure. Without the bucket there is no store, so this isn't a missing
        // chunk.
        Answer::Status(404, _) if said.contains("NoSuchBucket") || said.contains("ContainerNotFound") => {
            let name = element(&said, "BucketName").map_or(String::new(), |name| format!(" '{name}'"));
            let what = format!("there is no bucket{name}; check the path, and the endpoint if one is given");
            Fault::Permanent(Error::value(what).caused_by(RequestError { said, error }))
        }
        Answer::Status(404, _) => Fault::Missing,
        Answer::Status(412, _) => Fault::Replaced,
        Answer::Status(501 | 505, _) => Fault::Permanent(failed(error, "")),
        Answer::Status(408 | 429 | 500..=599, wait) => Fault::Transient(failed(error, ""), wait),
        // S3's answer if it didn't get the whole request in time.
        Answer::Status(400, wait) if said.contains("RequestTimeout") => Fault::Transient(failed(error, ""), wait),
        Answer::Status(401 | 403, _) => Fault::Refused(
            failed(
                error,
                " (credentials come from the environment, a profile or a role; where listing isn't allowed, stores say this \
                 of missing keys too: allow s3:ListBucket, or storage.objects.list)",
            )
            .refusing(),
        ),
        Answer::Status(300..=399, _) => {
            Fault::Permanent(failed(error, " (is the region, or the endpoint, the bucket's?)"))
        }
        Answer::Status(..) => Fault::Permanent(failed(error, "")),
        Answer::Failed => Fault::Transient(failed(error, ""), None),
        Answer::None if is_unsupported => Fault::Permanent(failed(error, "")),
        Answer::None if said.contains("URL scheme is not allowed") => {
            Fault::Permanent(failed(error, " (an endpoint with http:// needs the option allow_http)"))
        }
        Answer::None => Fault::Unsent(failed(error, NO_CREDENTIALS)),
    }
}

/// Returns the text of the element `name` in the XML of an answer.
fn element<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = said.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0)
}

/// Returns the fault that a failed listing means. Listings carry no [`Answer`]: only the text of the error tells the
/// status.
pub(super) fn classify_listing(error: object_store::Error) -> Fault {
    let said = text(&error);
    let refused = ["401 Unauthorized", "403 Forbidden"].iter().any(|status| said.contains(status));
    if refused { Fault::Refused(failed(error, "").refusing()) } else { Fault::Unsent(failed(error, NO_CREDENTIALS)) }
}

/// Makes the error of a request, with `advice` at the end.
pub(super) fn failed(error: object_store::Error, advice: &str) -> Error {
    let said = text(&error);
    Error::runtime(format!("{said}{advice}")).caused_by(RequestError { said, error })
}

/// An error of object_store, shown without the secrets that answers repeat. The original error, which still has them,
/// is its source.
pub(super) struct RequestError {
    said: String,
    error: object_store::Error,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl fmt::Debug for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Returns the text of an error and its causes, without secrets, and cut to 500 characters.
pub(super) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    let flat = hidden(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match flat.char_indices().nth(500) {
        Some((at, _)) => format!("{}...", &flat[..at]),
        None => flat,
    }
}

/// Replaces the credentials and signatures that S3's answers repeat.
fn hidden(text: &str) -> String {
    let mut rest = text;
    let mut shown = String::with_capacity(text.len());
    while let Some(begin) = rest.find('<') {
        let (before, element) = rest.split_at(begin);
        shown += before;
        let secret =
            ["<Token", "<AWSAccessKeyId", "<StringToSign", "<SignatureProvided", "<CanonicalRequest", "<X-Amz"];
        let inside = element.find('>').filter(|_| secret.iter().any(|s| element.starts_with(s)));
        let at = inside.map_or(1, |end| end + 1);
        shown += &element[..at];
        rest = &element[at..];
        if inside.is_some() {
            shown += "...";
            rest = rest.find("</").map_or("", |end| &rest[end..]);
        }
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        let found =
            hidden("400: <Error><Code>ExpiredToken</Code><Token-0>FwoG</Token-0><X>1 < 2</X><AWSAccessKeyId>AKIA");
        assert_eq!(found, "400: <Error><Code>ExpiredToken</Code><Token-0>...</Token-0><X>1 < 2</X><AWSAccessKeyId>...");
    }

    #[test]
    fn answers() {
        let error = || object_store::Error::Generic { store: "test", source: "words".into() };
        let status = |code| classify(error(), &Answer::Status(code, None));
        assert!(matches!(status(404), Fault::Missing) && matches!(status(412), Fault::Replaced));
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(status(code), Fault::Transient(..)), "{code}");
        }
        for code in [200, 206, 301, 400, 405, 410, 416, 501] {
            assert!(matches!(status(code), Fault::Permanent(_)), "{code}");
        }
        assert!(matches!(status(401), Fault::Refused(_)) && matches!(status(403), Fault::Refused(_)));
        let body = "404: <Error><Code>NoSuchBucket</Code><BucketName>era6</BucketName></Error>";
        let error_of_bucket = object_store::Error::Generic { store: "test", source: body.into() };
        match classify(error_of_bucket, &Answer::Status(404, None)) {
            Fault::Permanent(e) => assert!(e.message().starts_with("there is no bucket 'era6'"), "{e}"),
            _ => panic!("a bucket that isn't there is no missing key"),
        }
        assert!(matches!(classify(error(), &Answer::Failed), Fault::Transient(..)));
        assert!(matches!(classify(error(), &Answer::None), Fault::Unsent(_)));
    }
}
