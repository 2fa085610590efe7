//! Parts of the benchmark of remote stores (`tests/bench/remote.py`): a server on the loopback that waits before each
//! answer, and a plain downloader to compare with.
//!
//! `remote_bench serve ROOT LATENCY_MS` serves the files below ROOT, and waits LATENCY_MS milliseconds before each
//! answer. It prints its URL, and ends when its standard input does.
//! `remote_bench download URL CONCURRENCY SECONDS` reads lines `KEY` or `KEY FIRST END` (END is exclusive) from the
//! standard input. It gets them in turn, again and again for SECONDS, with CONCURRENCY requests at a time. It prints
//! bytes, requests and seconds as JSON.

use std::collections::HashMap;
use std::io::BufRead;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use object_store::{ClientConfigKey, GetOptions, GetRange, ObjectStore, http::HttpBuilder, path::Path};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", root, latency] => {
            let latency = Duration::from_millis(latency.parse().expect("milliseconds"));
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
            println!("http://{}", listener.local_addr().expect("an address"));
            let files = Arc::new(Files { root: root.into(), held: Mutex::default() });
            runtime.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&files), latency));
                }
            });
            for _ in std::io::stdin().lock().lines() {}
        }
        ["download", url, concurrency, seconds] => {
            let limit = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            let lines: Vec<String> = std::io::stdin().lock().lines().map_while(Result::ok).collect();
            runtime.block_on(download(url, concurrency.parse().expect("a number"), limit, &lines));
        }
        _ => {
            eprintln!("expected serve ROOT LATENCY_MS or download URL CONCURRENCY SECONDS");
            std::process::exit(2);
        }
    }
}

/// Serves files from memory. Each file is read once, even if it has several names, so that the benchmark measures the
/// connection and not the disk.
struct Files {
    root: PathBuf,
    held: Mutex<HashMap<u64, Arc<Vec<u8>>>>,
}

impl Files {
    fn get(&self, path: &str) -> Option<Arc<Vec<u8>>> {
        let path = self.root.join(path.trim_start_matches('/'));
        let inode = std::fs::metadata(&path).ok().filter(|m| m.is_file())?.ino();
        let mut held = self.held.lock().expect("no panic");
        if let Some(file) = held.get(&inode) {
            return Some(Arc::clone(file));
        }
        let file = Arc::new(std::fs::read(&path).ok()?);
        held.insert(inode, Arc::clone(&file));
        Some(file)
    }
}

async fn serve(stream: TcpStream, files: Arc<Files>, latency: Duration) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut range) = (String::new(), None);
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let path = line.split(' ').nth(1)?.to_owned();
        let head = line.starts_with("HEAD");
        loop {
            line.clear();
            stream.read_line(&mut line).await.ok()?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (first, last) = text.trim().split_once('-')?;
                range = Some((first.parse::<usize>().ok(), last.parse::<usize>().ok()));
            }
        }
        tokio::time::sleep(latency).await;
        let Some(file) = files.get(&path) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.ok()?;
            continue;
        };
        let size = file.len();
        let (status, bytes) = match range {
            None => ("200 OK", 0..size),
            Some((Some(first), last)) => ("206 Partial Content", first..last.map_or(size, |l| (l + 1).min(size))),
            Some((None, last)) => ("206 Partial Content", size.saturating_sub(last?)..size),
        };
        let of = match range {
            Some(_) => format!("Content-Range: bytes {}-{}/{size}\r\n", bytes.start, bytes.end - 1),
            None => String::new(),
        };
        let head_text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{size}\"\r\n{of}\r\n", bytes.len());
        stream.write_all(head_text.as_bytes()).await.ok()?;
        if !head {
            stream.write_all(&file[bytes]).await.ok()?;
        }
    }
}

async fn download(url: &str, concurrency: usize, limit: Duration, lines: &[String]) {
    let http = HttpBuilder::new().with_url(url).with_config(ClientConfigKey::AllowHttp, "true").build();
    let store = http.expect("a URL");
    let start = Instant::now();
    let store = &store;
    let gets = lines.iter().cycle().take_while(|_| start.elapsed() < limit).map(|line| async move {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().expect("a number");
        let range = (words.len() == 3).then(|| GetRange::Bounded(number(1)..number(2)));
        let options = GetOptions { range, ..GetOptions::default() };
        let found = store.get_opts(&Path::from(words[0]), options).await.expect("an answer");
        found.bytes().await.expect("a body").len()
    });
    let all = futures_util::stream::iter(gets).buffer_unordered(concurrency);
    let (bytes, requests) = all.fold((0, 0), async |(bytes, n), more| (bytes + more, n + 1)).await;
    println!("{{\"bytes\": {bytes}, \"requests\": {requests}, \"seconds\": {}}}", start.elapsed().as_secs_f64());
}
