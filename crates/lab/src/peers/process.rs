//! A shim as a process: a line of JSON in, a line of JSON out, its log at hand, an end for every wait.

use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tare_core::Fault;

/// Lines of the log that are kept, the last ones.
const LOG_LINES: usize = 200;
/// Lines of the log that an error quotes.
const QUOTED: usize = 6;
/// How long a dying process may take before it is ended.
const GRACE: Duration = Duration::from_secs(1);
/// Longest answer: ids, logits and times of a million tokens are shorter.
const ANSWER_BYTES: u64 = 64 << 20;

/// A running shim. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Shim {
    name: String,
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    log: Arc<Mutex<VecDeque<String>>>,
    logged: Receiver<()>,
}

impl Shim {
    /// Starts `command`, whose standard streams become the shim's. It has a process group of its own, so that Ctrl-C
    /// reaches whoever holds it and not the shim; it ends when its standard input does.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self, Fault> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| {
            Fault::new(format!("peer {name}"), "its shim to start", e.to_string())
                .remedy(format!("run `tare peers install {name}`"))
        })?;
        let (Some(requests), Some(out), Some(err)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Fault::new(format!("peer {name}"), "three pipes to its shim", "fewer"));
        };
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            loop {
                let mut line = Vec::new();
                match out.by_ref().take(ANSWER_BYTES).read_until(b'\n', &mut line) {
                    Ok(n) if n > 0 => {}
                    _ => return,
                }
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&log);
        let (logging, logged) = channel::<()>();
        std::thread::spawn(move || {
            keep_log(BufReader::new(err), &kept);
            drop(logging);
        });
        Ok(Self { name: name.into(), child, requests: Some(requests), answers, log, logged })
    }

    /// Sends a request and waits for its answer at most `limit`.
    pub(super) fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value, Fault> {
        let op = request["op"].as_str().unwrap_or("request").to_string();
        let sent = match &mut self.requests {
            Some(pipe) => writeln!(pipe, "{request}").and_then(|()| pipe.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        if sent.is_err() {
            return Err(self.dead(&op));
        }
        let line = match self.answers.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err(self.dead(&op)),
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                return Err(self.fault(&op, format!("an answer within {limit:?}"), "none; it was ended"));
            }
        };
        let answer: Value = serde_json::from_str(&line).map_err(|e| {
            let shown: String = line.chars().take(200).collect();
            self.fault(&op, "a line of JSON", format!("{e} in `{}`", shown.trim_end()))
        })?;
        match answer["ok"].as_bool() {
            Some(true) => Ok(answer),
            Some(false) => {
                let why = answer["why"].as_str().unwrap_or("no reason").to_string();
                Err(self.fault(&op, "success", why))
            }
            None => Err(self.fault(&op, "`ok` in its answer", "none")),
        }
    }

    /// An error at `op` with the last lines of the log.
    pub(super) fn fault(&self, op: &str, expected: impl Into<String>, found: impl Into<String>) -> Fault {
        let lines = self.log.lock().map(|l| l.iter().rev().take(QUOTED).rev().cloned().collect::<Vec<_>>());
        let quoted = lines.unwrap_or_default().join(" | ");
        let told = if quoted.is_empty() { "its log is empty".into() } else { format!("its log ends: {quoted}") };
        Fault::new(format!("peer {}: {op}", self.name), expected, found).remedy(told)
    }

    /// What is said of a shim that is gone: how it ended, and the last lines of its log.
    fn dead(&mut self, op: &str) -> Fault {
        self.requests = None;
        let patience = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && patience.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end();
        let how = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        self.fault(op, "an answer", format!("that its shim is dead ({how})"))
    }

    /// Ends the process, if it has not ended, and waits for the rest of its log.
    fn end(&mut self) {
        self.requests = None;
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            drop(self.child.kill());
        }
        drop(self.child.wait());
        // A process that it started may hold its log open: no endless wait for that one.
        let _ = self.logged.recv_timeout(GRACE);
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.end();
    }
}

fn keep_log(mut lines: impl BufRead, kept: &Mutex<VecDeque<String>>) {
    let mut line = Vec::new();
    while lines.by_ref().take(64 << 10).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let Ok(mut log) = kept.lock() else { return };
        if log.len() == LOG_LINES {
            log.pop_front();
        }
        log.push_back(String::from_utf8_lossy(&line).trim_end().to_string());
        drop(log);
        line.clear();
    }
}
