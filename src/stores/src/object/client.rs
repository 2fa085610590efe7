//! The HTTP client below a store. It counts requests, and keeps what [`super::classify`] must know of each answer: the
//! status, and the code of the error. The library's own errors tell these as text only.
//!
//! The library reads some bodies to their end: refusals, lists, credentials. A server can send them without end, so
//! they are read here first, up to a limit each. Bodies of values have their limits in [`super::transfer`].

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::aws::AwsCredentialProvider;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientConfigKey, ClientOptions};
use tokio::time::{Instant, timeout_at};

use super::error_body::ErrorBody;
use super::names::{ObjectName, StandIns, hide_in_list};
use super::options::is_true;
use super::signing;
use crate::Counters;

/// Most bytes that are read of the body of a refusal. Each failed chunk keeps these bytes with its error.
const MAX_REFUSAL: usize = 4 << 10;
/// Longest time for the body of a refusal. The status says the most, and is there before.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// Most bytes of a page of a list. The longest pages have 5000 names of 1 KiB.
const MAX_LIST: usize = 16 << 20;
/// Most bytes of an answer to another request, as for credentials.
const MAX_OTHER: usize = 1 << 20;
/// Most bytes of an ETag. It is kept as the version of a value. Longer ones are ignored.
const MAX_TAG: usize = 1 << 10;
/// Azure's header with the code of an error.
const AZURE_CODE: &str = "x-ms-error-code";

/// The answer to one request for an object's bytes, or for a list of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request wasn't sent.
    #[default]
    None,
    /// The request wasn't sent: the URL begins with `http://`, which the options don't allow.
    Unencrypted,
    /// There was no answer: the connection failed, or the time was up.
    Failed,
    /// The answer is longer than this many bytes, which is more than such an answer may have.
    TooLong(usize),
    /// The status, and what else the answer says.
    Status(u16, Reply),
}

/// What an answer says beside its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// How long the server asks to wait before the next try.
    pub wait: Option<Duration>,
    /// The code of the error, and the bucket.
    pub error: ErrorBody,
}

/// Travels with a request for a value or a list through the library, and receives the answer.
#[derive(Clone, Debug)]
pub(super) struct Note {
    answer: Arc<Mutex<Answer>>,
    stand_ins: Arc<Mutex<Option<StandIns>>>,
    is_list: bool,
}

impl Note {
    fn new(stand_ins: Option<StandIns>, is_list: bool) -> Self {
        Self { answer: Arc::default(), stand_ins: Arc::new(Mutex::new(stand_ins)), is_list }
    }

    /// Makes the note of a request for a value.
    pub fn of_value(name: &ObjectName) -> Self {
        Self::new(name.stand_ins, false)
    }

    /// Makes the note of a request for a page of a list.
    pub fn of_list() -> Self {
        Self::new(None, true)
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// Returns the answer; [`Answer::None`] if there is none yet.
    pub fn answer(&self) -> Answer {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what stands for control characters: in the URL of the value, or in the list that was received.
    pub fn stand_ins(&self) -> Option<StandIns> {
        *self.stand_ins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes clients that count requests and keep each answer's status.
#[derive(Debug)]
pub(super) struct Connector<C> {
    inner: C,
    counters: Arc<Counters>,
    credentials: Arc<OnceLock<AwsCredentialProvider>>,
}

impl Connector<ReqwestConnector> {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self::over(ReqwestConnector::default(), counters)
    }
}

impl<C> Connector<C> {
    pub fn over(inner: C, counters: Arc<Counters>) -> Self {
        Self { inner, counters, credentials: Arc::default() }
    }

    /// Where to put the credentials of S3, once they are known. Requests are signed again with them if their URL was
    /// changed.
    pub fn credentials(&self) -> Arc<OnceLock<AwsCredentialProvider>> {
        Arc::clone(&self.credentials)
    }
}

impl<C: HttpConnector> HttpConnector for Connector<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.inner.connect(options)?;
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| is_true(&value));
        let (counters, credentials) = (Arc::clone(&self.counters), Arc::clone(&self.credentials));
        Ok(HttpClient::new(Service { client, allows_http, counters, credentials }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    /// Whether requests may be sent without encryption.
    allows_http: bool,
    counters: Arc<Counters>,
    credentials: Arc<OnceLock<AwsCredentialProvider>>,
}

/// A URL that isn't encrypted, where that isn't allowed. reqwest refuses it too, but only its message says why.
#[derive(Debug)]
struct Unencrypted;

impl fmt::Display for Unencrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a URL with https://, but found http://")
    }
}

impl std::error::Error for Unencrypted {}

/// An answer that is longer than such an answer may be.
#[derive(Debug)]
struct TooLong(usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected an answer of at most {} bytes, but found more", self.0)
    }
}

impl std::error::Error for TooLong {}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let note = request.extensions().get::<Note>().cloned();
        let set = |answer: Answer| note.iter().for_each(|note| note.set(answer.clone()));
        if !self.allows_http && request.uri().scheme_str() == Some("http") {
            set(Answer::Unencrypted);
            return Err(HttpError::new(HttpErrorKind::Unknown, Unencrypted));
        }
        if let Some(stand_ins) = note.as_ref().and_then(Note::stand_ins) {
            restore_url(&mut request, stand_ins)?;
            signing::sign_again(&mut request, self.credentials.get()).await?;
        }
        self.counters.requests.fetch_add(1, Relaxed);
        let is_head = request.method() == "HEAD";
        let mut response = self.client.execute(request).await.inspect_err(|_| set(Answer::Failed))?;
        let (status, wait) = (response.status(), wait(&response));
        if response.headers().get("etag").is_some_and(|tag| tag.len() > MAX_TAG) {
            response.headers_mut().remove("etag");
        }
        let answered = |error| Answer::Status(status.as_u16(), Reply { wait, error });
        if !status.is_success() {
            let (response, error) = refusal(response).await;
            set(answered(error));
            return Ok(response);
        }
        set(answered(ErrorBody::default()));
        let max = match &note {
            _ if is_head => return Ok(response),
            Some(note) if !note.is_list => return Ok(response),
            Some(_) => MAX_LIST,
            None => MAX_OTHER,
        };
        let (parts, body) = response.into_parts();
        let mut read = Vec::new();
        if !up_to(body, max, &mut read).await.inspect_err(|_| set(Answer::Failed))? {
            set(Answer::TooLong(max));
            return Err(HttpError::new(HttpErrorKind::Unknown, TooLong(max)));
        }
        if let (Some(note), Ok(list)) = (&note, std::str::from_utf8(&read)) {
            let (list, stand_ins) = hide_in_list(list);
            *note.stand_ins.lock().unwrap_or_else(PoisonError::into_inner) = stand_ins;
            read = list.into_bytes();
        }
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(read)))
    }
}

/// Puts control characters in the place of their stand-ins.
fn restore_url(request: &mut HttpRequest, stand_ins: StandIns) -> Result<(), HttpError> {
    let url = stand_ins.restore_encoded(&request.uri().to_string());
    *request.uri_mut() = url.parse().map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
    Ok(())
}

/// Appends a body to `read`, up to `max` bytes. Returns whether that is all of it.
///
/// # Errors
/// If the body breaks off.
async fn up_to(body: HttpResponseBody, max: usize, read: &mut Vec<u8>) -> Result<bool, HttpError> {
    let mut stream = body.bytes_stream();
    while let Some(bytes) = stream.next().await.transpose()? {
        let room = max - read.len();
        read.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the code of the error from a refusal. Returns the refusal with the beginning of its body.
async fn refusal(response: HttpResponse) -> (HttpResponse, ErrorBody) {
    let (parts, body) = response.into_parts();
    let mut read = Vec::new();
    // What has arrived is enough, whether or not the rest comes.
    let _ = timeout_at(Instant::now() + REFUSAL_TIME, up_to(body, MAX_REFUSAL, &mut read)).await;
    let mut error = ErrorBody::parse(&read);
    if let Some(code) = parts.headers.get(AZURE_CODE).and_then(|code| code.to_str().ok()) {
        error.code = Some(code.to_owned());
    }
    // The library shows only text.
    let text = String::from_utf8_lossy(&read).into_owned();
    (HttpResponse::from_parts(parts, HttpResponseBody::from(text)), error)
}

/// Returns `Retry-After` if it is a number of seconds. Dates are ignored: the usual pauses are enough.
fn wait(response: &HttpResponse) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
