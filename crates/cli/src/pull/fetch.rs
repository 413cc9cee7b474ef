//! One file over HTTP: resumed where it broke off, checked before it gets its name.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha1::Digest as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use tare_core::digest::Hasher;

/// Attempts at one file before giving up; an attempt that brought bytes does not count.
const ATTEMPTS: u32 = 5;
/// Answers that may be different next time.
const TRANSIENT: [u16; 6] = [408, 429, 500, 502, 503, 504];

/// A file to be fetched.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    /// Path inside the model's folder.
    pub(crate) path: String,
    /// Its address.
    pub(crate) url: String,
    /// Its length, as the hub lists it.
    pub(crate) bytes: u64,
    /// How its contents are checked.
    pub(crate) check: Check,
}

/// What a file's contents must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// SHA-256 of the contents: large files.
    Sha256(String),
    /// Git's object id, SHA-1 of a header and the contents: small files.
    GitBlob(String),
}

/// Fetches over one connection pool with one token.
#[derive(Debug)]
pub(crate) struct Fetcher {
    agent: ureq::Agent,
    token: Option<String>,
}

impl Fetcher {
    /// A fetcher that waits at most half a minute for an answer to begin.
    pub(crate) fn new(token: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(30)))
            .http_status_as_error(false)
            .user_agent(concat!("tare/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into(), token: token.map(str::to_string) }
    }

    /// The text at `url`, for listings.
    pub(crate) fn text(&self, url: &str) -> Result<String> {
        let mut answer = self.get(url, 0)?;
        match answer.status().as_u16() {
            200 => Ok(answer.body_mut().with_config().limit(64 << 20).read_to_string()?),
            status => bail!("{}", refusal(url, status)),
        }
    }

    fn get(&self, url: &str, from: u64) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        request.call().with_context(|| format!("cannot reach {url}"))
    }

    /// Fetches `remote` into `folder` and returns its SHA-256. A part that is there already is continued.
    pub(crate) fn file(&self, remote: &Remote, folder: &Path) -> Result<String> {
        let target = folder.join(&remote.path);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        if target.exists() {
            if let Ok(sha256) = verify(&target, remote) {
                return Ok(sha256);
            }
            std::fs::remove_file(&target)?;
        }
        let part = target.with_file_name(format!("{}.part", target.file_name().unwrap_or_default().to_string_lossy()));
        let bar = bar(remote)?;
        self.complete(remote, &part, &bar)?;
        let sha256 = match verify(&part, remote) {
            Ok(s) => s,
            Err(_) => {
                // What was kept from an earlier try may be what is wrong: once more from nothing.
                std::fs::remove_file(&part)?;
                self.complete(remote, &part, &bar)?;
                verify(&part, remote).inspect_err(|_| drop(std::fs::remove_file(&part)))?
            }
        };
        File::open(&part)?.sync_all()?;
        std::fs::rename(&part, &target)?;
        bar.finish();
        Ok(sha256)
    }

    /// Brings `part` to its full length, over as many connections as that takes.
    fn complete(&self, remote: &Remote, part: &Path, bar: &ProgressBar) -> Result<()> {
        let mut failures = 0;
        loop {
            let have = std::fs::metadata(part).map(|m| m.len()).unwrap_or(0);
            if have > remote.bytes {
                std::fs::remove_file(part)?;
                continue;
            }
            if have == remote.bytes {
                return Ok(());
            }
            bar.set_position(have);
            let error = match self.attempt(remote, part, have, bar) {
                Ok(()) => None,
                Err(Attempt::Final(e)) => return Err(e),
                Err(Attempt::Transient(e)) => Some(e),
            };
            let now = std::fs::metadata(part).map(|m| m.len()).unwrap_or(0);
            failures = if now > have { 0 } else { failures + 1 };
            if failures >= ATTEMPTS {
                let why = error.map_or_else(|| "the connection brings no more bytes".to_string(), |e| format!("{e:#}"));
                bail!(
                    "{}: gave up after {ATTEMPTS} attempts at {now} of {} bytes: {why}; pull again to continue there",
                    remote.path,
                    remote.bytes
                );
            }
            std::thread::sleep(Duration::from_millis(100 << failures));
        }
    }

    fn attempt(&self, remote: &Remote, part: &Path, have: u64, bar: &ProgressBar) -> Result<(), Attempt> {
        let mut answer = self.get(&remote.url, have).map_err(Attempt::Transient)?;
        let status = answer.status().as_u16();
        let resumed = status == 206 && range_start(&answer) == Some(have);
        match status {
            200 | 206 => {}
            s if TRANSIENT.contains(&s) => {
                return Err(Attempt::Transient(anyhow::anyhow!("{}", refusal(&remote.url, s))));
            }
            s => return Err(Attempt::Final(anyhow::anyhow!("{}", refusal(&remote.url, s)))),
        }
        if status == 206 && !resumed {
            std::fs::remove_file(part).map_err(|e| Attempt::Final(e.into()))?;
            return Err(Attempt::Transient(anyhow::anyhow!(
                "{}: the server sent another range than was asked for",
                remote.url
            )));
        }
        let mut open = OpenOptions::new();
        let open = if resumed { open.append(true) } else { open.write(true).truncate(true) };
        let mut file = open.create(true).open(part).map_err(|e| Attempt::Final(e.into()))?;
        if !resumed {
            bar.set_position(0);
        }
        let mut body = answer.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 17];
        loop {
            let n = body.read(&mut buffer).map_err(|e| Attempt::Transient(e.into()))?;
            if n == 0 {
                return Ok(());
            }
            file.write_all(&buffer[..n])
                .with_context(|| format!("cannot write {}", part.display()))
                .map_err(Attempt::Final)?;
            bar.inc(n as u64);
        }
    }
}

/// Why an attempt ended early.
enum Attempt {
    /// Worth another try.
    Transient(anyhow::Error),
    /// Not.
    Final(anyhow::Error),
}

/// The first byte of a `Content-Range: bytes 5-9/10`.
fn range_start(answer: &ureq::http::Response<ureq::Body>) -> Option<u64> {
    let text = answer.headers().get("content-range")?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn refusal(url: &str, status: u16) -> String {
    let remedy = match status {
        401 | 403 => "; the model may need an account: set HF_TOKEN to a token that may read it",
        404 => "; check the name and the revision",
        429 => "; the hub asks to slow down: try again later",
        _ => "",
    };
    format!("{url}: expected 200, found {status}{remedy}")
}

/// The SHA-256 of a file whose length and contents match.
fn verify(path: &Path, remote: &Remote) -> Result<String> {
    let mut file = File::open(path)?;
    let mut sha256 = Hasher::new();
    let mut git = sha1::Sha1::new();
    git.update(format!("blob {}\0", remote.bytes));
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        sha256.update(&buffer[..n]);
        git.update(&buffer[..n]);
    }
    let sha256 = sha256.finish();
    let (expected, found) = match &remote.check {
        Check::Sha256(want) => (want.clone(), sha256.clone()),
        Check::GitBlob(want) => (want.clone(), git.finalize().iter().map(|b| format!("{b:02x}")).collect()),
    };
    if expected != found {
        bail!(
            "{}: expected digest {expected}, found {found}; what came is not what the hub lists: pull again",
            remote.path
        );
    }
    Ok(sha256)
}

fn bar(remote: &Remote) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:32!} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")?;
    Ok(ProgressBar::new(remote.bytes).with_style(style).with_message(remote.path.clone()))
}
