//! How long a thread was ready to run and had no processor, as the system counts it.

#[cfg(target_os = "linux")]
use std::{fs::File, os::unix::fs::FileExt};

#[cfg(target_os = "linux")]
const PATH: &str = "/proc/thread-self/schedstat";

/// The waits of one thread of this process.
///
/// The scheduler adds to them whenever the thread gets a processor that it had to wait for: because another thread had the
/// same one, or because a control group had used its time up. What a hypervisor takes is not in them. Any thread may ask;
/// asking is one read of a file in memory and allocates nothing.
#[derive(Debug)]
pub struct Waits {
    #[cfg(target_os = "linux")]
    file: File,
    #[cfg(target_os = "linux")]
    thread: libc::pid_t,
}

#[cfg(target_os = "linux")]
impl Waits {
    /// Those of the calling thread.
    ///
    /// # Errors
    /// A sentence when the system has no such file or counts nothing in it.
    pub fn of_this_thread() -> Result<Self, String> {
        let file = File::open(PATH).map_err(|e| format!("{PATH}: {e}"))?;
        let waits = Self { file, thread: this_thread() };
        waits.ns().map(|_| waits)
    }

    /// Whether they are those of the calling thread.
    pub fn are_of_this_thread(&self) -> bool {
        self.thread == this_thread()
    }

    /// Nanoseconds since the thread began.
    ///
    /// # Errors
    /// A sentence when the thread has ended or the system counts nothing.
    pub fn ns(&self) -> Result<u64, String> {
        let mut text = [0; 80];
        let length = self.file.read_at(&mut text, 0).map_err(|e| format!("{PATH}: {e}"))?;
        parse(&text[..length])
    }
}

#[cfg(not(target_os = "linux"))]
impl Waits {
    /// Always an error here: the system does not count them.
    ///
    /// # Errors
    /// That.
    pub fn of_this_thread() -> Result<Self, String> {
        Err("waits for a processor are read from /proc/thread-self/schedstat, which this system lacks".to_string())
    }

    /// Whether they are those of the calling thread.
    pub fn are_of_this_thread(&self) -> bool {
        true
    }

    /// Nanoseconds since the thread began: 0, of no thread.
    ///
    /// # Errors
    /// None.
    pub fn ns(&self) -> Result<u64, String> {
        Ok(0)
    }
}

#[cfg(target_os = "linux")]
fn this_thread() -> libc::pid_t {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// `nanoseconds that it ran, nanoseconds that it waited, times that it was given a processor`: three zeros on a kernel
/// that does not count.
#[cfg(target_os = "linux")]
fn parse(text: &[u8]) -> Result<u64, String> {
    let text = str::from_utf8(text).unwrap_or("");
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(0)), Some(Ok(0)), Some(Ok(0))) => Err(format!("{PATH}: this kernel does not count waits")),
        (Some(Ok(_)), Some(Ok(waited)), Some(Ok(_))) => Ok(waited),
        _ => Err(format!("{PATH}: expected three numbers, found \"{text}\"")),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait() {
        assert_eq!(parse(b"107830 1376929 2\n"), Ok(1_376_929));
        assert!(parse(b"0 0 0\n").unwrap_err().contains("does not count"));
        for bad in [&b"1 2\n"[..], b"", b"a b c", b"1 -2 3", b"\xff"] {
            assert!(parse(bad).unwrap_err().contains("three numbers"), "{bad:?}");
        }
    }

    #[test]
    fn every_thread_has_waits_of_its_own_that_others_may_read() {
        let Ok(mine) = Waits::of_this_thread() else { return };
        assert!(mine.are_of_this_thread() && mine.ns().is_ok());
        let ended = std::thread::scope(|scope| {
            let (send, theirs) = std::sync::mpsc::channel();
            let (end, asked) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                send.send(Waits::of_this_thread().unwrap()).unwrap();
                asked.recv().unwrap_err();
            });
            let theirs = theirs.recv().unwrap();
            assert!(!theirs.are_of_this_thread());
            let before = theirs.ns().unwrap();
            assert!(theirs.ns().unwrap() >= before);
            drop(end);
            theirs
        });
        // The scope has joined the thread; the system may take a moment more to forget it.
        while ended.ns().is_ok() {
            std::thread::yield_now();
        }
    }
}
