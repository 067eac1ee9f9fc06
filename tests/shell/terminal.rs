//! A terminal with `tessera` in it: a pseudo-terminal on one side, the cells of a screen on the other.

use nix::pty::{Winsize, openpty};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time-out of each wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that have no letter.
pub(super) mod key {
    pub(crate) const CTRL_A: &str = "\x01";
    pub(crate) const CTRL_C: &str = "\x03";
    pub(crate) const CTRL_D: &str = "\x04";
    pub(crate) const CTRL_R: &str = "\x12";
    pub(crate) const CTRL_U: &str = "\x15";
    pub(crate) const ENTER: &str = "\r";
    pub(crate) const TAB: &str = "\t";
    pub(crate) const UP: &str = "\x1b[A";
    pub(crate) const DOWN: &str = "\x1b[B";
    pub(crate) const RIGHT: &str = "\x1b[C";
}

/// See the module.
pub(super) struct Terminal {
    child: Child,
    keys: File,
    line: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// A shell on a screen of 30 lines of 100 characters; `home` holds its history, settings and tensors.
    pub(super) fn open(home: &Path, variables: &[(&str, &OsStr)]) -> Terminal {
        Terminal::with_arguments(home, variables, &[])
    }

    /// The same with arguments of the command line.
    pub(super) fn with_arguments(
        home: &Path,
        variables: &[(&str, &OsStr)],
        arguments: &[&str],
    ) -> Terminal {
        let (rows, columns) = (30, 100);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        // `setsid` makes the terminal the controlling one, which sends signals: without it Ctrl-C is a character.
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(env!("CARGO_BIN_EXE_tessera"))
            .arg("--warehouse")
            .arg(home.join("warehouse"))
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_remove("PAGER")
            .env_remove("NO_COLOR")
            .env_remove("COLORTERM")
            .env_remove("TESSERA_RC")
            .env_remove("XDG_STATE_HOME")
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", home)
            .envs(variables.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(parser(rows, columns)));
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let mut output = File::from(pty.master.try_clone().unwrap());
        let (shown, seen) = (screen.clone(), bytes.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The read fails when the other side is closed.
            while let Ok(n) = output.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                seen.lock().unwrap().extend_from_slice(&buffer[..n]);
                shown.lock().unwrap().process(&buffer[..n]);
            }
        });
        Terminal { child, keys: File::from(pty.master), line: pty.slave, screen, bytes }
    }

    /// Types.
    pub(super) fn keys(&mut self, keys: &str) -> &mut Self {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Types a line and Enter.
    pub(super) fn line(&mut self, text: &str) -> &mut Self {
        self.keys(text).keys(key::ENTER)
    }

    /// Waits until the screen shows `text`.
    pub(super) fn sees(&mut self, text: &str) -> &mut Self {
        self.waits(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is as `wanted`; `what` names this in the failure.
    pub(super) fn waits(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> &mut Self {
        let started = Instant::now();
        loop {
            let shown = self.shown();
            if wanted(&shown) {
                return self;
            }
            assert!(started.elapsed() < PATIENCE, "no `{what}` on the screen:\n{shown}\n");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Presses a key until the screen shows `text`: the shell may not have the answer of its engine at the first time.
    pub(super) fn until(&mut self, key: &str, text: &str) -> &mut Self {
        let started = Instant::now();
        while !self.shown().contains(text) {
            assert!(started.elapsed() < PATIENCE, "no `{text}` on the screen:\n{}\n", self.shown());
            self.keys(key);
            let pressed = Instant::now();
            while pressed.elapsed() < Duration::from_secs(1) && !self.shown().contains(text) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self
    }

    /// Waits for an empty prompt on the last line that has anything.
    pub(super) fn prompt(&mut self) -> &mut Self {
        self.waits("prompt", |screen| screen.trim_end().ends_with("tessera>"))
    }

    /// The contents of the screen.
    pub(super) fn shown(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Everything that came, with its escape sequences.
    pub(super) fn written(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    /// Does something with the cells of the screen.
    pub(super) fn cells<R>(&self, with: impl FnOnce(&vt100::Screen) -> R) -> R {
        with(self.screen.lock().unwrap().screen())
    }

    /// Forgets the screen, so that only later output is seen.
    pub(super) fn wipe(&mut self) -> &mut Self {
        *self.screen.lock().unwrap() = parser(30, 100);
        self
    }

    /// Changes the size of the window.
    pub(super) fn resize(&mut self, rows: u16, columns: u16) -> &mut Self {
        *self.screen.lock().unwrap() = parser(rows, columns);
        let sized = Command::new("stty")
            .args(["rows", &rows.to_string(), "cols", &columns.to_string()])
            .stdin(Stdio::from(self.line.try_clone().unwrap()))
            .status()
            .unwrap();
        assert!(sized.success());
        self
    }

    /// Waits for the end; the exit status.
    pub(super) fn ends(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < PATIENCE, "it does not end:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn parser(rows: u16, columns: u16) -> vt100::Parser {
    vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
