//! Test runners side by side: each one's output is kept until it ends, and then shown whole.

use crate::tally::Tally;
use anyhow::{Context, Result};
use std::cmp::Reverse;
use std::fmt;
use std::io::{ErrorKind, PipeReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How many run at once on a host with many processors. Each one's tests are spread over all of them already; further
/// runners only fill what the others leave idle towards their end, and every one takes memory.
const MOST_AT_ONCE: usize = 4;

/// How long what a runner wrote is waited for when it has ended.
const GRACE: Duration = Duration::from_secs(2);

/// How many runners are named with their times at the end.
const SLOWEST: usize = 10;

/// A program that runs tests and prints their results.
#[derive(Debug)]
pub(crate) struct Runner {
    /// What people know it by.
    pub(crate) name: String,
    /// What is run; its input and output are set here.
    pub(crate) command: Command,
}

/// A runner that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    /// From its start to its end.
    took: Duration,
    /// What it wrote, to stdout and stderr in the order of writing.
    pub(crate) output: String,
    /// How it ended, or why it could not be run.
    outcome: Result<ExitStatus>,
}

/// What is told of a runner.
enum Event {
    Begun(String),
    Ended(Ended),
}

/// Runs all of `runners`, begun in their order and as many at once as the host has processors, up to [`MOST_AT_ONCE`], and
/// prints each when it has ended. Returns them in the order of their ends.
pub(crate) fn run(runners: Vec<Runner>) -> Vec<Ended> {
    let at_once = thread::available_parallelism().map_or(1, usize::from).min(MOST_AT_ONCE);
    let mut all = Vec::new();
    side_by_side(runners, at_once, |event| match event {
        Event::Begun(name) => println!("running {name}"),
        Event::Ended(ended) => {
            // One call, so that no other thread of this program prints in between.
            print!("{ended}");
            all.push(ended);
        }
    });
    all
}

/// Runs `runners`, `at_once` at a time; `tell` is called by this thread alone, one event after the other.
fn side_by_side(runners: Vec<Runner>, at_once: usize, tell: impl FnMut(Event)) {
    let waiting = Mutex::new(runners.into_iter());
    let (events, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (waiting, events) = (&waiting, events.clone());
            scope.spawn(move || {
                // Told while the queue is held, so that they are told in the order in which they begin.
                let next = || {
                    let mut waiting = waiting.lock().expect("no worker panics while it takes a runner");
                    let runner = waiting.next()?;
                    events.send(Event::Begun(runner.name.clone())).ok()?;
                    Some(runner)
                };
                while let Some(runner) = next() {
                    if events.send(Event::Ended(runner.run())).is_err() {
                        break;
                    }
                }
            });
        }
        drop(events);
        told.iter().for_each(tell);
    });
}

impl Runner {
    fn run(mut self) -> Ended {
        let (start, mut output) = (Instant::now(), Vec::new());
        let outcome = self.outcome(&mut output);
        let output = String::from_utf8_lossy(&output).into_owned();
        Ended { name: self.name, took: start.elapsed(), output, outcome }
    }

    fn outcome(&mut self, output: &mut Vec<u8>) -> Result<ExitStatus> {
        let (reader, writer) = std::io::pipe().context("making a pipe")?;
        // Nobody could tell which of several programs asks. The group stays that of this program, so that Ctrl-C at a
        // terminal ends all.
        let command = self.command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().context("it could not be started")?;
        // The pipe ends when nobody can write: our own ends must go.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (written, over) = gather(reader);
        let status = child.wait().context("waiting for its end")?;
        // A process that a test left behind may hold the pipe open for as long as it lives.
        let ended = over.recv_timeout(GRACE).is_ok();
        output.append(&mut written.lock().expect("whoever gathers does not panic"));
        if !ended {
            if output.last().is_some_and(|last| *last != b'\n') {
                output.push(b'\n');
            }
            output.extend_from_slice(b"a process that it started outlives it; what that writes is not shown\n");
        }
        Ok(status)
    }
}

/// Reads to the end of a pipe in a thread of its own: what came so far, and word when nobody can write any more.
fn gather(mut pipe: PipeReader) -> (Arc<Mutex<Vec<u8>>>, mpsc::Receiver<()>) {
    let (written, (done, over)) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
    let to = Arc::clone(&written);
    thread::spawn(move || {
        let mut some = [0; 8192];
        loop {
            match pipe.read(&mut some) {
                Ok(0) => break,
                Ok(n) => to.lock().expect("whoever takes it does not panic").extend_from_slice(&some[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        // Nobody waits for it any more after the grace.
        let _ = done.send(());
    });
    (written, over)
}

impl Ended {
    /// Whether it says that all is well.
    fn succeeded(&self) -> bool {
        self.outcome.as_ref().is_ok_and(ExitStatus::success)
    }

    /// Adds what its tests did to `tally`.
    pub(crate) fn count(&self, tally: &mut Tally) {
        tally.add(&self.name, &self.output, self.succeeded(), &self.how());
    }

    fn how(&self) -> String {
        match &self.outcome {
            Ok(status) => status.to_string(),
            Err(e) => format!("{e:#}"),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "== {}: {:.1} s, {}", self.name, self.took.as_secs_f64(), self.how())?;
        f.write_str(&self.output)?;
        if self.output.is_empty() || self.output.ends_with('\n') { Ok(()) } else { writeln!(f) }
    }
}

/// The slowest runners with their seconds, and all that did not succeed; nothing where none ran.
pub(crate) fn in_short(ended: &[Ended]) -> String {
    if ended.is_empty() {
        return String::new();
    }
    let mut slowest: Vec<&Ended> = ended.iter().collect();
    slowest.sort_by_key(|e| Reverse(e.took));
    slowest.truncate(SLOWEST);
    let title = format!("the slowest {} of {} runners:\n", slowest.len(), ended.len());
    let times = slowest.iter().map(|e| format!("{:7.1} s  {}\n", e.took.as_secs_f64(), e.name));
    let failed = ended.iter().filter(|e| !e.succeeded()).map(|e| format!("failed: {}\n", e.name));
    std::iter::once(title).chain(times).chain(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Runner {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Runner { name: name.into(), command }
    }

    const OK: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn all_run_begun_in_their_order_and_told_whole() {
        // The first ends only when the second, beside it, has begun to write, and the second only after the first's end.
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let wait = |name: &str| format!("while [ ! -e '{0}' ]; do sleep 0.01; done", path(name));
        let first = format!("echo a1; {}; echo a2 >&2; echo a3; touch '{}'", wait("wrote"), path("ended"));
        let second = format!("echo b1; touch '{}'; {}; printf b2", path("wrote"), wait("ended"));
        let runners = vec![shell("a", &first), shell("b", &second), shell("c", "echo c1")];
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        side_by_side(runners, 2, |event| match event {
            Event::Begun(name) => begun.push(name),
            Event::Ended(e) => ended.push((e.name, e.output)),
        });
        assert_eq!(begun, ["a", "b", "c"]);
        ended.sort();
        let expected = [("a", "a1\na2\na3\n"), ("b", "b1\nb2"), ("c", "c1\n")];
        assert_eq!(ended, expected.map(|(name, output)| (name.to_string(), output.to_string())));
    }

    #[test]
    fn one_worker_runs_them_one_after_the_other() {
        let mut told = Vec::new();
        side_by_side(vec![shell("a", ""), shell("b", "")], 1, |event| {
            told.push(match event {
                Event::Begun(name) => format!("{name} begun"),
                Event::Ended(e) => format!("{} ended", e.name),
            });
        });
        assert_eq!(told, ["a begun", "a ended", "b begun", "b ended"]);
    }

    #[test]
    fn what_dies_or_cannot_be_started_is_a_failure_and_the_others_run() {
        let absent = Runner { name: "absent".into(), command: Command::new("no-such-program-of-tare") };
        let mut tally = Tally::default();
        let ended = run(vec![shell("dies", "echo running 1 test; kill -9 $$"), absent, shell("passes", OK)]);
        ended.iter().for_each(|e| e.count(&mut tally));
        assert_eq!(tally.to_string(), "1 passed, 2 failed, 0 skipped");
        let of = |name: &str| ended.iter().find(|e| e.name == name).unwrap();
        assert!(!of("dies").succeeded() && of("dies").how().contains("signal: 9"), "{}", of("dies"));
        assert!(!of("absent").succeeded() && of("absent").how().contains("could not be started"), "{}", of("absent"));
        assert!(of("passes").succeeded());
    }

    #[test]
    fn what_outlives_a_runner_is_not_waited_for() {
        let ended = shell("a", "echo 1; sleep 60 & printf 2").run();
        let lines: Vec<&str> = ended.output.lines().collect();
        assert_eq!(lines[..2], ["1", "2"]);
        assert!(ended.succeeded() && lines[2].contains("outlives it"), "{ended}");
        assert!(ended.took < Duration::from_secs(50), "{ended}");
    }

    #[test]
    fn what_is_shown_has_name_seconds_and_ends_its_last_line() {
        let shown = |script: &str| shell("a", script).run().to_string();
        let lines: Vec<String> = shown("printf 1; exit 3").lines().map(str::to_string).collect();
        assert!(lines[0].starts_with("== a: ") && lines[0].ends_with(" s, exit status: 3"), "{}", lines[0]);
        assert_eq!(lines[1..], ["1"]);
        assert!(shown("printf 1").ends_with("1\n") && shown("echo 1").ends_with("\n1\n"));
    }

    #[test]
    fn the_slowest_come_first_and_every_failure_is_named() {
        let of = |seconds: u64| Ended {
            name: format!("r{seconds}"),
            took: Duration::from_secs(seconds),
            output: String::new(),
            outcome: if seconds == 1 { Err(anyhow::anyhow!("absent")) } else { Ok(ExitStatus::default()) },
        };
        let said = in_short(&[3, 12, 5, 1, 2, 4, 6, 7, 8, 9, 10, 11].map(of));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((lines[0], lines[1]), ("the slowest 10 of 12 runners:", "   12.0 s  r12"));
        assert_eq!(lines[10..], ["    3.0 s  r3", "failed: r1"]);
        assert_eq!(in_short(&[]), "");
    }
}
