//! The body of a refusal: an XML document `<Error>` with the elements `<Code>` and, from S3 and Google, `<BucketName>`.
//! S3, Google Cloud Storage and Azure document these codes; everything else in the body is for people.

use quick_xml::Reader;
use quick_xml::events::Event;

/// Most bytes of a text that is taken. Names of buckets have at most 222, codes about 50.
const MAX_TEXT: usize = 256;

/// What the body of a refusal says to programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorBody {
    /// The code of the error, such as `NoSuchBucket`.
    pub code: Option<String>,
    /// The name of the bucket.
    pub bucket: Option<String>,
}

impl ErrorBody {
    /// Reads a body. If it isn't such a document, nothing is known. If the document breaks off, everything before is
    /// known.
    pub fn parse(body: &[u8]) -> Self {
        let mut found = Self::default();
        let mut reader = Reader::from_reader(body);
        // The elements around the place that is read.
        let mut path: Vec<Vec<u8>> = Vec::new();
        loop {
            match reader.read_event() {
                Ok(Event::Start(element)) => path.push(element.name().as_ref().to_vec()),
                Ok(Event::End(_)) => {
                    path.pop();
                }
                Ok(Event::Text(text)) => {
                    let [root, element] = &path[..] else { continue };
                    let field = match (&root[..], &element[..]) {
                        (b"Error", b"Code") => &mut found.code,
                        (b"Error", b"BucketName") => &mut found.bucket,
                        _ => continue,
                    };
                    *field =
                        text.decode().ok().filter(|text| text.len() <= MAX_TEXT).map(|text| text.trim().to_owned());
                }
                Ok(Event::Eof) | Err(_) => return found,
                Ok(_) => {}
            }
        }
    }

    /// Whether the error is that the bucket (Azure: the container) doesn't exist.
    pub fn is_missing_bucket(&self) -> bool {
        matches!(self.code.as_deref(), Some("NoSuchBucket" | "ContainerNotFound"))
    }

    /// Whether the error is that credentials are no longer valid.
    pub fn is_expired_token(&self) -> bool {
        matches!(self.code.as_deref(), Some("ExpiredToken" | "InvalidToken"))
    }

    /// Whether the error is one of the request's credentials, and not of the key.
    pub fn is_about_credentials(&self) -> bool {
        const CODES: [&str; 14] = [
            "AccountProblem",
            "AuthenticationFailed",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidAuthenticationInfo",
            "InvalidSecurity",
            "InvalidToken",
            "NotSignedUp",
            "RequestExpired",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
            "UserProjectMissing",
        ];
        self.code.as_deref().is_some_and(|code| CODES.contains(&code))
    }

    /// Whether the error is that the server didn't get the whole request in time.
    pub fn is_timeout(&self) -> bool {
        self.code.as_deref() == Some("RequestTimeout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> (Option<String>, Option<String>) {
        let found = ErrorBody::parse(body.as_bytes());
        (found.code, found.bucket)
    }

    #[test]
    fn codes_and_buckets_of_the_services() {
        let s3 = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchBucket</Code><Message>The specified \
                  bucket does not exist</Message><BucketName>era6</BucketName><RequestId>A1</RequestId></Error>";
        assert_eq!(parsed(s3), (Some("NoSuchBucket".into()), Some("era6".into())));
        assert!(ErrorBody::parse(s3.as_bytes()).is_missing_bucket());
        let azure = "\u{feff}<?xml version='1.0'?><Error>\n  <Code>\n    ContainerNotFound\n  </Code></Error>";
        assert!(ErrorBody::parse(azure.as_bytes()).is_missing_bucket(), "{:?}", parsed(azure));
        assert!(ErrorBody::parse(b"<Error><Code>RequestTimeout</Code></Error>").is_timeout());
    }

    #[test]
    fn only_the_element_counts() {
        // A key or a message may hold the words.
        for body in [
            "<Error><Code>NoSuchKey</Code><Key>NoSuchBucket</Key></Error>",
            "<Error><Code>NoSuchKey</Code><Message>NoSuchBucket: RequestTimeout</Message></Error>",
            "<Error><Details><Code>NoSuchBucket</Code></Details></Error>",
            "<html><Code>NoSuchBucket</Code></html>",
            "NoSuchBucket",
            "",
        ] {
            let found = ErrorBody::parse(body.as_bytes());
            assert!(!found.is_missing_bucket() && !found.is_timeout(), "{body}");
        }
    }

    #[test]
    fn damaged_bodies_tell_what_stands_before_the_damage() {
        let whole = b"<Error><Code>NoSuchBucket</Code><BucketName>era6</BucketName></Error>";
        for cut in 0..whole.len() {
            let found = ErrorBody::parse(&whole[..cut]);
            assert!(found.code.is_none_or(|code| "NoSuchBucket".starts_with(&*code)), "{cut}");
        }
        let mut seed = crate::object::fake::Random(5);
        for _ in 0..20_000 {
            let mut bytes = whole.to_vec();
            for _ in 0..=seed.below(4) {
                let at = seed.below(bytes.len() as u64) as usize;
                bytes[at] = seed.below(256) as u8;
            }
            ErrorBody::parse(&bytes);
        }
        let long = format!("<Error><Code>{}</Code></Error>", "x".repeat(1000));
        assert_eq!(parsed(&long), (None, None));
    }
}
