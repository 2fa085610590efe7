//! Decides what the failure of a request means: which [`Fault`] it is.

use std::fmt;

use super::client::Answer;
use crate::error::{Code, Error};
use crate::store::retry::Fault;

/// Advice for requests without a known answer.
const NO_CREDENTIALS: &str = " (if no credentials were found in the environment, a profile or a role: a public bucket needs the option \
                              skip_signature)";

/// Returns the fault that an error means, given the server's answer if there was one.
pub(super) fn classify(error: object_store::Error, answer: &Answer) -> Fault {
    use object_store::Error as E;
    let is_unsupported = matches!(error, E::NotSupported { .. } | E::InvalidPath { .. } | E::NotImplemented { .. });
    match answer {
        // Without the bucket there is no store, so this isn't a missing chunk.
        Answer::Status(404, reply) if reply.error.is_missing_bucket() => {
            let name = reply.error.bucket.as_ref().map_or(String::new(), |name| format!(" '{name}'"));
            let what = format!("there is no bucket{name}; check the path, and the endpoint if one is given");
            Fault::Permanent(Error::coded(Code::NotFound, what).caused_by(RequestError { said: text(&error), error }))
        }
        Answer::Status(404, _) => Fault::Missing,
        Answer::Status(412, _) => Fault::Replaced,
        Answer::Status(501 | 505, _) => Fault::Permanent(failed(error, "")),
        Answer::Status(408 | 429 | 500..=599, reply) => Fault::Transient(unavailable(error, ""), reply.wait),
        Answer::Status(400, reply) if reply.error.is_timeout() => Fault::Transient(unavailable(error, ""), reply.wait),
        Answer::Status(400, reply) if reply.error.is_expired_token() => {
            Fault::Permanent(failed(error, " (the credentials must be renewed)").with_code(Code::PermissionDenied))
        }
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
        Answer::Failed => Fault::Transient(unavailable(error, ""), None),
        Answer::Unencrypted => {
            Fault::Permanent(failed(error, " (an endpoint with http:// needs the option allow_http)").with_code(Code::Invalid))
        }
        Answer::None if is_unsupported => Fault::Permanent(failed(error, "")),
        Answer::None => Fault::Unsent(unavailable(error, NO_CREDENTIALS)),
    }
}

/// Returns the fault that a failed listing means.
pub(super) fn classify_listing(error: object_store::Error, answer: &Answer) -> Fault {
    match answer {
        Answer::Status(401 | 403, _) => Fault::Refused(failed(error, "").refusing()),
        Answer::Unencrypted => classify(error, answer),
        Answer::Status(404, reply) if reply.error.is_missing_bucket() => classify(error, answer),
        _ => Fault::Unsent(unavailable(error, NO_CREDENTIALS)),
    }
}

/// Makes the error of a request, with `advice` at the end.
fn failed(error: object_store::Error, advice: &str) -> Error {
    let said = text(&error);
    Error::runtime(format!("{said}{advice}")).caused_by(RequestError { said, error })
}

/// As [`failed`], where a later request may succeed.
pub(super) fn unavailable(error: object_store::Error, advice: &str) -> Error {
    failed(error, advice).with_code(Code::Unavailable)
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
    use super::super::client::Reply;
    use super::super::error_body::ErrorBody;
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
        let status = |code| classify(error(), &Answer::Status(code, Reply::default()));
        assert!(matches!(status(404), Fault::Missing) && matches!(status(412), Fault::Replaced));
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(status(code), Fault::Transient(..)), "{code}");
        }
        for code in [200, 206, 301, 400, 405, 410, 416, 501] {
            assert!(matches!(status(code), Fault::Permanent(_)), "{code}");
        }
        assert!(matches!(status(401), Fault::Refused(_)) && matches!(status(403), Fault::Refused(_)));
        let saying = |body: &str| Reply { wait: None, error: ErrorBody::parse(body.as_bytes()) };
        let no_bucket = saying("<Error><Code>NoSuchBucket</Code><BucketName>era6</BucketName></Error>");
        match classify(error(), &Answer::Status(404, no_bucket)) {
            Fault::Permanent(e) => assert!(e.message().starts_with("there is no bucket 'era6'"), "{e}"),
            _ => panic!("a bucket that isn't there is no missing key"),
        }
        let no_bucket = saying("<Error><Code>NoSuchBucket</Code></Error>");
        let listing = classify_listing(error(), &Answer::Status(404, no_bucket));
        assert!(matches!(listing, Fault::Permanent(e) if e.code() == Code::NotFound));
        let expired = saying("<Error><Code>ExpiredToken</Code></Error>");
        let fault = classify(error(), &Answer::Status(400, expired));
        assert!(matches!(fault, Fault::Permanent(e) if e.code() == Code::PermissionDenied && !e.is_refused()));
        let late = saying("<Error><Code>RequestTimeout</Code></Error>");
        assert!(matches!(classify(error(), &Answer::Status(400, late)), Fault::Transient(..)));
        match classify(error(), &Answer::Unencrypted) {
            Fault::Permanent(e) => assert!(e.message().ends_with("needs the option allow_http)"), "{e}"),
            _ => panic!("the next request would be refused too"),
        }
        assert!(matches!(classify(error(), &Answer::Failed), Fault::Transient(..)));
        assert!(matches!(classify(error(), &Answer::None), Fault::Unsent(_)));
        // The words of a message say nothing.
        let words = || object_store::Error::Generic { store: "test", source: "403 Forbidden NoSuchBucket".into() };
        assert!(matches!(classify(words(), &Answer::Status(404, Reply::default())), Fault::Missing));
        assert!(matches!(classify_listing(words(), &Answer::Status(500, Reply::default())), Fault::Unsent(_)));
        for refused in [401, 403] {
            let fault = classify_listing(error(), &Answer::Status(refused, Reply::default()));
            assert!(matches!(fault, Fault::Refused(e) if e.is_refused()));
        }
    }
}
