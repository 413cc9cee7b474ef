//! The campaign's side of the lines: a child process that answers, is asked whether to go on, and never outlives us.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tare_core::Fault;

use crate::arm::protocol::{Answer, Ask, VERSION, line, parse};
use crate::build_info::BuildInfo;

/// How often the campaign is asked whether to go on while an arm works.
const LOOK: Duration = Duration::from_millis(50);
/// The longest that one answer may take: a judge of a large model may need minutes.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long a process may take to end by itself.
const GOODBYE: Duration = Duration::from_millis(1000);
/// What is kept of its last words, in bytes.
const WORDS: usize = 4096;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The campaign was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The process ended, did not answer in time, or said something else.
    #[error("{0}")]
    Child(String),
    /// It answered that it could not.
    #[error("{0}")]
    Refused(String),
}

/// Whether to go on; asked again and again while an arm works.
pub type GoOn = Arc<dyn Fn() -> bool + Send + Sync>;

/// A live arm process. Dropping it ends it.
pub struct ArmProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
    words: Arc<Mutex<Vec<u8>>>,
    go_on: GoOn,
}

impl fmt::Debug for ArmProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArmProcess").field("pid", &self.child.id()).finish_non_exhaustive()
    }
}

impl ArmProcess {
    /// Starts `binary arm` and greets it; gives what it was built from too.
    ///
    /// # Errors
    /// When it cannot be started or does not speak this version.
    pub fn start(binary: &Path, go_on: GoOn) -> Result<(Self, BuildInfo), Lost> {
        let mut child = Command::new(binary)
            .arg("arm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Lost::Child(format!("{}: expected to start, found: {e}", binary.display())))?;
        let (Some(to), Some(out), Some(err)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(Lost::Child("its pipes are not there".to_string()));
        };
        let (send, from) = channel();
        thread::spawn(move || {
            // A line that is no UTF-8 is an answer too, and a wrong one.
            for text in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&text).into_owned()).is_err() {
                    break;
                }
            }
        });
        let words = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&words);
        thread::spawn(move || listen(err, &heard));
        let mut process = Self { child, to: Some(to), from, words, go_on };
        match process.ask(&Ask::Hello { protocol: VERSION })? {
            Answer::Hello { protocol: VERSION, build } => Ok((process, build)),
            other => Err(Lost::Child(format!("expected a greeting of version {VERSION}, found {other:?}"))),
        }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When the campaign was told to stop, the process is gone or mute, or it could not do what was asked.
    pub fn ask(&mut self, ask: &Ask) -> Result<Answer, Lost> {
        let text = line(ask).map_err(|e: Fault| Lost::Child(e.to_string()))?;
        let Some(to) = &mut self.to else { return Err(Lost::Child("it was told to end".to_string())) };
        if writeln!(to, "{text}").and_then(|()| to.flush()).is_err() {
            return Err(self.gone());
        }
        let asked = Instant::now();
        loop {
            if !(self.go_on)() {
                return Err(Lost::Interrupted);
            }
            match self.from.recv_timeout(LOOK) {
                Ok(text) => {
                    let answer = parse(&text).map_err(|e| Lost::Child(e.to_string()))?;
                    return match answer {
                        Answer::Failed { why } => Err(Lost::Refused(why)),
                        answer => Ok(answer),
                    };
                }
                Err(RecvTimeoutError::Timeout) if asked.elapsed() < PATIENCE => {}
                Err(RecvTimeoutError::Timeout) => {
                    let waited = PATIENCE.as_secs();
                    return Err(Lost::Child(format!("no answer to {ask:?} within {waited} s")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    /// What became of a process that closed its pipes. Ctrl-C reaches the children of a terminal too.
    fn gone(&mut self) -> Lost {
        let status = self.end();
        if !(self.go_on)() {
            return Lost::Interrupted;
        }
        let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
        let words = self.words.lock().map(|w| String::from_utf8_lossy(&w).trim().to_string()).unwrap_or_default();
        let last: Vec<&str> = words.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Lost::Child(format!("the process ended ({status}): {}", last.join(" | ")))
    }

    /// Ends it: without its input it has nothing left to answer and ends by itself; one that still lives is ended.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.to = None;
        let told = Instant::now();
        while told.elapsed() < GOODBYE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for ArmProcess {
    fn drop(&mut self) {
        // Nobody is left to be told that it could not be ended.
        let _ = self.end();
    }
}

/// Keeps the end of what the process says on its error stream.
fn listen(mut err: impl Read, heard: &Mutex<Vec<u8>>) {
    let mut part = [0; 1024];
    while let Ok(n) = err.read(&mut part) {
        if n == 0 {
            break;
        }
        if let Ok(mut words) = heard.lock() {
            words.extend_from_slice(&part[..n]);
            let surplus = words.len().saturating_sub(WORDS);
            words.drain(..surplus);
        }
    }
}
