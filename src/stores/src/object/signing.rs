//! Signs requests to S3 again after their URL was changed: the library's signature is one of the URL that it knows.

use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

/// Beginning of the header of a request that is signed.
const SIGNED: &str = "AWS4-HMAC-SHA256 ";
/// The header with the token of a directory bucket. Its signature needs the credentials of a session, which only the
/// library has.
const SESSION_TOKEN: &str = "x-amz-s3session-token";

/// Signs `request` again if it is signed for S3.
///
/// # Errors
/// If there are no credentials, or they can't be had.
pub(super) async fn sign_again(
    request: &mut HttpRequest,
    credentials: Option<&AwsCredentialProvider>,
) -> Result<(), HttpError> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let Some(signature) = header("authorization").filter(|header| header.starts_with(SIGNED)) else { return Ok(()) };
    let wrong = |text: &str| HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(text.to_owned()));
    let credentials = credentials.filter(|_| header(SESSION_TOKEN).is_none());
    let credentials = credentials.ok_or_else(|| {
        wrong("names with control characters can't be read from directory buckets; rename what has such a name")
    })?;
    // Credential=ID/DATE/REGION/SERVICE/aws4_request, SignedHeaders=...
    let scope = signature.split("Credential=").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
    let mut parts = scope.rsplit('/').skip(1);
    let (Some(service), Some(region)) = (parts.next(), parts.next()) else {
        return Err(wrong("expected a signature with a region, but found another"));
    };
    let signs_body = header("x-amz-content-sha256").is_none_or(|digest| digest != "UNSIGNED-PAYLOAD");
    let credential = credentials.get_credential().await.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
    request.headers_mut().remove("authorization");
    AwsAuthorizer::new(&credential, service, region).with_sign_payload(signs_body).authorize(request, None);
    Ok(())
}
