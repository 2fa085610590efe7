//! Decides what the failure of a request means: which [`Fault`] it is.

use std::fmt;

use super::client::{Answer, Note};
use crate::retry::Fault;
use dali_zarr_base::error::{Code, Error, printable};

/// Advice for requests without a known answer.
const NO_CREDENTIALS: &str = " (if no credentials were found in the environment, a profile or a role: a public bucket needs the option \
                              skip_signature)";

/// Returns the fault that an error means, given the note of its request. `missing` are statuses that the user takes
/// for "there is no such key".
pub(super) fn classify(error: object_store::Error, note: &Note, missing: &[u16]) -> Fault {
    let shown = note.stand_ins().map(|stand_ins| stand_ins.restore_encoded(&text(&error)));
    let shown = shown.unwrap_or_else(|| text(&error));
    fault(RequestError { said: shown, error }, &note.answer(), missing)
}

fn fault(error: RequestError, answer: &Answer, missing: &[u16]) -> Fault {
    use object_store::Error as E;
    let is_unsupported =
        matches!(error.error, E::NotSupported { .. } | E::InvalidPath { .. } | E::NotImplemented { .. });
    match answer {
        // Without the bucket there is no store, so this isn't a missing chunk.
        Answer::Status(404, reply) if reply.error.is_missing_bucket() => {
            let name = reply.error.bucket.as_ref().map_or(String::new(), |name| format!(" '{name}'"));
            let what = format!("there is no bucket{name}; check the path, and the endpoint if one is given");
            Fault::Permanent(Error::coded(Code::NotFound, what).caused_by(error))
        }
        Answer::Status(404, _) => Fault::Missing,
        // Wrong credentials would make all data fill values.
        Answer::Status(status, reply) if missing.contains(status) && !reply.error.is_about_credentials() => {
            Fault::Missing
        }
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
                 of missing keys too: allow s3:ListBucket, or storage.objects.list; where you can't, see the option missing_status)",
            )
            .refusing(),
        ),
        Answer::Status(300..=399, _) => {
            Fault::Permanent(failed(error, " (is the region, or the endpoint, the bucket's?)"))
        }
        Answer::Status(..) => Fault::Permanent(failed(error, "")),
        Answer::Failed => Fault::Transient(unavailable(error, ""), None),
        Answer::TooLong(_) => Fault::Permanent(failed(error, "")),
        Answer::Unencrypted => {
            Fault::Permanent(failed(error, " (an endpoint with http:// needs the option allow_http)").with_code(Code::Invalid))
        }
        Answer::None if is_unsupported => Fault::Permanent(failed(error, "")),
        Answer::None => Fault::Unsent(unavailable(error, NO_CREDENTIALS)),
    }
}

/// Returns the fault that a failed listing means.
pub(super) fn classify_listing(error: object_store::Error, note: &Note) -> Fault {
    listing_fault(RequestError::new(error), &note.answer())
}

fn listing_fault(error: RequestError, answer: &Answer) -> Fault {
    match answer {
        Answer::Status(401 | 403, _) => Fault::Refused(failed(error, "").refusing()),
        Answer::Unencrypted | Answer::TooLong(_) => fault(error, answer, &[]),
        Answer::Status(404, reply) if reply.error.is_missing_bucket() => fault(error, answer, &[]),
        _ => Fault::Unsent(unavailable(error, NO_CREDENTIALS)),
    }
}

/// Makes the error of a request, with `advice` at the end.
fn failed(error: RequestError, advice: &str) -> Error {
    Error::runtime(format!("{error}{advice}")).caused_by(error)
}

/// As [`failed`], where a later request may succeed.
fn unavailable(error: RequestError, advice: &str) -> Error {
    failed(error, advice).with_code(Code::Unavailable)
}

/// Returns the fault of a body that broke off.
pub(super) fn broken_off(error: object_store::Error) -> Fault {
    Fault::Transient(unavailable(RequestError::new(error), "").within("the answer broke off"), None)
}

/// An error of object_store, shown without the secrets that answers repeat. The original error, which still has them,
/// is its source.
struct RequestError {
    said: String,
    error: object_store::Error,
}

impl RequestError {
    fn new(error: object_store::Error) -> Self {
        Self { said: text(&error), error }
    }
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
fn text(error: &dyn std::error::Error) -> String {
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
    let flat = printable(&flat);
    match flat.char_indices().nth(500) {
        Some((at, _)) => format!("{}...", &flat[..at]),
        None => flat.into_owned(),
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
        let saying =
            |words: &str| RequestError::new(object_store::Error::Generic { store: "test", source: words.into() });
        let error = || saying("words");
        let classify = |error, answer: &Answer| fault(error, answer, &[]);
        let status = |code| classify(error(), &Answer::Status(code, Reply::default()));
        assert!(matches!(status(404), Fault::Missing) && matches!(status(412), Fault::Replaced));
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(status(code), Fault::Transient(..)), "{code}");
        }
        for code in [200, 206, 301, 400, 405, 410, 416, 501] {
            assert!(matches!(status(code), Fault::Permanent(_)), "{code}");
        }
        assert!(matches!(status(401), Fault::Refused(_)) && matches!(status(403), Fault::Refused(_)));
        let with_body = |body: &str| Reply { wait: None, error: ErrorBody::parse(body.as_bytes()) };
        let no_bucket = with_body("<Error><Code>NoSuchBucket</Code><BucketName>era6</BucketName></Error>");
        match classify(error(), &Answer::Status(404, no_bucket)) {
            Fault::Permanent(e) => assert!(e.message().starts_with("there is no bucket 'era6'"), "{e}"),
            _ => panic!("a bucket that isn't there is no missing key"),
        }
        let no_bucket = with_body("<Error><Code>NoSuchBucket</Code></Error>");
        let listing = listing_fault(error(), &Answer::Status(404, no_bucket));
        assert!(matches!(listing, Fault::Permanent(e) if e.code() == Code::NotFound));
        let expired = with_body("<Error><Code>ExpiredToken</Code></Error>");
        let fault = classify(error(), &Answer::Status(400, expired));
        assert!(matches!(fault, Fault::Permanent(e) if e.code() == Code::PermissionDenied && !e.is_refused()));
        let late = with_body("<Error><Code>RequestTimeout</Code></Error>");
        assert!(matches!(classify(error(), &Answer::Status(400, late)), Fault::Transient(..)));
        match classify(error(), &Answer::Unencrypted) {
            Fault::Permanent(e) => assert!(e.message().ends_with("needs the option allow_http)"), "{e}"),
            _ => panic!("the next request would be refused too"),
        }
        assert!(matches!(classify(error(), &Answer::Failed), Fault::Transient(..)));
        assert!(matches!(classify(error(), &Answer::None), Fault::Unsent(_)));
        // The words of a message say nothing.
        let words = || saying("403 Forbidden NoSuchBucket");
        assert!(matches!(classify(words(), &Answer::Status(404, Reply::default())), Fault::Missing));
        assert!(matches!(listing_fault(words(), &Answer::Status(500, Reply::default())), Fault::Unsent(_)));
        for refused in [401, 403] {
            let fault = listing_fault(error(), &Answer::Status(refused, Reply::default()));
            assert!(matches!(fault, Fault::Refused(e) if e.is_refused()));
        }
    }
    #[test]
    fn statuses_that_stand_for_missing_keys() {
        let of = |status, body: &str, missing: &[u16]| {
            let error = RequestError::new(object_store::Error::Generic { store: "test", source: "words".into() });
            let reply = Reply { wait: None, error: ErrorBody::parse(body.as_bytes()) };
            fault(error, &Answer::Status(status, reply), missing)
        };
        let denied = "<Error><Code>AccessDenied</Code></Error>";
        for body in ["", "<html>403</html>", denied] {
            assert!(matches!(of(403, body, &[403]), Fault::Missing), "{body}");
            assert!(
                matches!(of(403, body, &[]), Fault::Refused(_)) && matches!(of(401, body, &[403]), Fault::Refused(_))
            );
        }
        assert!(matches!(of(410, "", &[403, 410]), Fault::Missing));
        for code in ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"] {
            let fault = of(403, &format!("<Error><Code>{code}</Code></Error>"), &[403]);
            assert!(matches!(fault, Fault::Refused(_)), "{code}");
        }
        let no_bucket = "<Error><Code>NoSuchBucket</Code></Error>";
        assert!(matches!(of(404, no_bucket, &[404]), Fault::Permanent(_)));
    }
}
