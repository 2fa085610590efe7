//! Tests what the store concludes from answers of S3: refusals, codes in bodies, pages of lists.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::StatusCode;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

use super::RemoteStore;
use super::client::Connector;
use super::fake::without_waiting;
use crate::{ByteRange, Found, Phase, Runtime, Store};
use dali_zarr_base::error::{Code, ErrorKind, Result};

/// A server that gives these answers, one after the other, and keeps the queries that it got.
#[derive(Clone, Debug, Default)]
struct Scripted(Arc<Script>);

#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<(u16, String)>>,
    queries: Mutex<Vec<String>>,
}

impl Scripted {
    fn new(answers: &[(u16, &str)]) -> Self {
        let answers = answers.iter().map(|&(status, body)| (status, body.to_owned())).collect();
        Self(Arc::new(Script { answers: Mutex::new(answers), ..Script::default() }))
    }

    fn store(&self, endpoint: &str) -> RemoteStore {
        self.store_with(endpoint, "false")
    }

    fn store_with(&self, endpoint: &str, allow_http: &str) -> RemoteStore {
        let runtime = Runtime::new(1).unwrap();
        let connector = Connector::over(self.clone(), Arc::clone(&runtime.counters));
        let options =
            [("aws_endpoint", endpoint), ("aws_region", "eu"), ("skip_signature", "true"), ("allow_http", allow_http)];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        RemoteStore::open_with("s3://era6/store", &options, runtime, connector).unwrap()
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.queries.lock().unwrap())
    }
}

#[async_trait]
impl HttpService for Scripted {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        self.0.queries.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
        let (status, body) = self.0.answers.lock().unwrap().pop_front().expect("as many answers as requests");
        let mut response = HttpResponse::new(HttpResponseBody::from(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok(response)
    }
}

impl HttpConnector for Scripted {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn read(store: &RemoteStore) -> Result<Option<Found>> {
    without_waiting(store.read("k", ByteRange::Whole, None, Phase::Running, &mut [0; 9]))
}

fn page(names: &[&str], next: &str) -> String {
    let names = names.iter().map(|n| format!("<CommonPrefixes><Prefix>store/{n}/</Prefix></CommonPrefixes>"));
    format!("<ListBucketResult>{}{next}</ListBucketResult>", names.collect::<String>())
}

#[test]
fn lists_have_all_pages() {
    let more = "<NextContinuationToken>t7</NextContinuationToken>";
    let server = Scripted::new(&[(200, &page(&["b", "c"], more)), (200, &page(&["a"], ""))]);
    let names = without_waiting(server.store("https://fake").children("")).unwrap();
    assert_eq!(names, Some(vec!["a".to_owned(), "b".into(), "c".into()]));
    let requests = server.requests();
    assert!(requests.iter().all(|r| r.contains("delimiter=%2F") && r.contains("prefix=store%2F")), "{requests:?}");
    assert!(requests.len() == 2 && requests[1].contains("continuation-token=t7"), "{requests:?}");
}

#[test]
fn lists_have_names_with_control_characters() {
    let list = page(
        &["a&#9;b", "c\td", "e&amp;f", "g&#x1F;"],
        "<Contents><Key>store/x&#13;</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>",
    );
    let server = Scripted::new(&[(200, &list)]);
    let names = without_waiting(server.store("https://fake").children("in\tner")).unwrap();
    assert_eq!(names, Some(vec!["a\tb".to_owned(), "c\td".into(), "e&f".into(), "g\u{1f}".into()]));
    assert!(server.requests()[0].contains("prefix=store%2Fin%09ner%2F"));
}

#[test]
fn lists_have_a_limit_for_all_pages_together() {
    let names: Vec<String> = (0..1000).map(|i| format!("{i:0>4000}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let list = page(&names, "<NextContinuationToken>t</NextContinuationToken>");
    let server = Scripted::new(&[(200, &*list); 6]);
    let error = without_waiting(server.store("https://fake").children("")).unwrap_err();
    assert!(error.message().contains("at most 16777216 bytes of names") && server.requests().len() == 5, "{error}");
}

#[test]
fn the_status_tells_whether_a_list_is_refused_and_not_the_text() {
    for status in [401, 403] {
        let server = Scripted::new(&[(status, "")]);
        let error = without_waiting(server.store("https://fake").children("")).unwrap_err();
        assert!(error.is_refused() && server.requests().len() == 1, "{error}");
    }
    let server = Scripted::new(&[(400, "403 Forbidden"), (400, "401 Unauthorized"), (400, "403 Forbidden")]);
    let error = without_waiting(server.store("https://fake").children("")).unwrap_err();
    assert!(!error.is_refused() && error.code() == Code::Unavailable, "{error}");
}

#[test]
fn a_missing_bucket_is_no_missing_key() {
    let body = "<Error><Code>NoSuchBucket</Code><BucketName>era6</BucketName></Error>";
    let error = read(&Scripted::new(&[(404, body)]).store("https://fake")).unwrap_err();
    assert!(error.message().contains("there is no bucket 'era6'"), "{error}");
    assert_eq!((error.code(), error.kind()), (Code::NotFound, ErrorKind::Value));
    let body = "<Error><Code>NoSuchKey</Code><Key>NoSuchBucket</Key></Error>";
    assert_eq!(read(&Scripted::new(&[(404, body)]).store("https://fake")).unwrap(), None);
    let endless = format!("<Error><Key>{}</Key><Code>NoSuchBucket</Code></Error>", "x".repeat(1 << 20));
    assert_eq!(read(&Scripted::new(&[(404, &endless)]).store("https://fake")).unwrap(), None, "only the front is read");
}

#[test]
fn a_request_that_came_too_slowly_is_sent_again() {
    let server = Scripted::new(&[(400, "<Error><Code>RequestTimeout</Code></Error>"), (404, "")]);
    assert_eq!(read(&server.store("https://fake")).unwrap(), None);
    let server =
        Scripted::new(&[(400, "<Error><Code>InvalidArgument</Code><Message>RequestTimeout</Message></Error>")]);
    assert!(read(&server.store("https://fake")).unwrap_err().message().contains("400"));
}

#[test]
fn requests_without_encryption_are_not_sent() {
    let server = Scripted::default();
    let error = read(&server.store("http://fake")).unwrap_err();
    assert!(error.message().contains("allow_http") && server.requests().is_empty(), "{error}");
    let error = without_waiting(server.store("http://fake").children("")).unwrap_err();
    assert!(error.message().contains("allow_http") && server.requests().is_empty(), "{error}");
    // The words that object_store takes for true, as they come from the environment.
    for allowed in ["1", "true", "True", "on", "YES", "y"] {
        let server = Scripted::new(&[(404, "")]);
        assert_eq!(read(&server.store_with("http://fake", allowed)).unwrap(), None, "{allowed}");
    }
}
