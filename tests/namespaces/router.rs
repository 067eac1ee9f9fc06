//! A network of namespaces of this machine: every packet between two of them comes late, some are lost, and ways between
//! two of them can be cut, each direction by itself.
//!
//! Each namespace has one TUN device, whose packets this process reads and hands to the device of the receiver.
#![expect(unsafe_code, reason = "a TUN device is opened by an ioctl")]

use crate::common::Random;
use nix::sched::{CloneFlags, setns};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Parties of a network: a server and three workers.
pub(super) const PARTIES: usize = 4;
/// How long a packet takes.
const LATENCY: Duration = Duration::from_millis(20);
/// The part of all packets that is lost.
const LOSS: f64 = 0.01;
/// Packets on their way; more are lost.
const PACKETS_MAX: usize = 8192;
const PACKET_BYTES_MAX: usize = 1 << 16;

/// The argument of `TUNSETIFF`: `struct ifreq`, with the name of a device and its flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// A device for packets of IP, without a header of its own.
const IFF_TUN_NO_PI: i16 = 0x0001 | 0x1000;

nix::ioctl_write_ptr_bad!(
    /// Makes an open file the end of a device.
    tunsetiff,
    nix::request_code_write!(b'T', 202, size_of::<i32>()),
    Request
);

/// Counters of packets.
#[derive(Default)]
struct Figures {
    passed: AtomicU64,
    lost: AtomicU64,
    cut: AtomicU64,
    over: AtomicU64,
}

/// Ways from one party to another that are cut.
type Cuts = [[AtomicBool; PARTIES]; PARTIES];

struct Packet {
    due: Instant,
    to: usize,
    bytes: Vec<u8>,
}

/// Namespaces and their devices; they go with it.
pub(super) struct Network {
    namespaces: Vec<String>,
    cuts: Arc<Cuts>,
    figures: Arc<Figures>,
}

/// The address of a party.
pub(super) fn address(party: usize) -> String {
    format!("10.77.0.{}", party + 1)
}

fn ip(arguments: &str) {
    let out = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Network {
    /// A network whose losses are drawn from a seed.
    pub(super) fn new(seed: u64) -> Network {
        remove_leftovers();
        let mut network =
            Network { namespaces: Vec::new(), cuts: Arc::default(), figures: Arc::default() };
        let mut devices = Vec::new();
        for party in 0..PARTIES {
            let name = format!("tessera-{}-{party}", std::process::id());
            ip(&format!("netns add {name}"));
            network.namespaces.push(name.clone());
            let device = format!("ts{}p{party}", std::process::id());
            devices.push(Arc::new(open(&device)));
            ip(&format!("link set {device} netns {name}"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} addr add {}/24 dev {device}", address(party)));
            ip(&format!("-n {name} link set {device} mtu 1500 up"));
        }
        let (send, receive) = sync_channel(PACKETS_MAX);
        for (party, device) in devices.iter().cloned().enumerate() {
            let reader = Reader {
                device,
                party,
                cuts: network.cuts.clone(),
                figures: network.figures.clone(),
                random: Random(seed ^ (party as u64) << 32),
                send: send.clone(),
            };
            std::thread::spawn(move || reader.run());
        }
        let figures = network.figures.clone();
        std::thread::spawn(move || deliver(&devices, &receive, &figures));
        network
    }

    pub(super) fn namespace(&self, party: usize) -> &str {
        &self.namespaces[party]
    }

    /// Moves this thread, and the processes that it starts, to the namespace of a party.
    pub(super) fn enter(&self, party: usize) {
        let file = File::open(format!("/run/netns/{}", self.namespaces[party])).unwrap();
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Cuts the way from one party to another, or mends it.
    pub(super) fn cut(&self, from: usize, to: usize, is_cut: bool) {
        self.cuts[from][to].store(is_cut, Relaxed);
    }

    pub(super) fn mend(&self) {
        self.cuts.iter().flatten().for_each(|cut| cut.store(false, Relaxed));
    }

    pub(super) fn told(&self) -> String {
        let Figures { passed, lost, cut, over } = &*self.figures;
        let [passed, lost, cut, over] = [passed, lost, cut, over].map(|n| n.load(Relaxed));
        format!("{passed} packets passed, {lost} lost, {cut} cut off, {over} too many")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // With a namespace goes its device, and with that the thread that reads it.
        for name in &self.namespaces {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Removes namespaces of processes that were killed.
fn remove_leftovers() {
    let out = Command::new("ip").args(["netns", "list"]).output().unwrap();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let pid = name.strip_prefix("tessera-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !std::fs::exists(format!("/proc/{pid}")).unwrap()) {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Makes a device of that name, which lives as long as the file.
fn open(device: &str) -> File {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut request = Request { name: [0; 16], flags: IFF_TUN_NO_PI, rest: [0; 22] };
    request.name[..device.len()].copy_from_slice(device.as_bytes());
    // SAFETY: the file is open, and the request is as long as the kernel reads and writes.
    unsafe { tunsetiff(file.as_raw_fd(), &raw const request) }.unwrap();
    file
}

/// Takes packets from the device of a party.
struct Reader {
    device: Arc<File>,
    party: usize,
    cuts: Arc<Cuts>,
    figures: Arc<Figures>,
    random: Random,
    send: SyncSender<Packet>,
}

impl Reader {
    /// Ends with the device.
    fn run(mut self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        while let Ok(n) = (&*self.device).read(&mut buffer) {
            let due = Instant::now() + LATENCY;
            let Some(to) = receiver(&buffer[..n]) else { continue };
            let counted = if self.cuts[self.party][to].load(Relaxed) {
                &self.figures.cut
            } else if self.random.unit() < LOSS {
                &self.figures.lost
            } else {
                match self.send.try_send(Packet { due, to, bytes: buffer[..n].to_vec() }) {
                    Ok(()) => continue,
                    Err(TrySendError::Full(_)) => &self.figures.over,
                    Err(TrySendError::Disconnected(_)) => return,
                }
            };
            counted.fetch_add(1, Relaxed);
        }
    }
}

/// The party that a packet of IPv4 is for.
fn receiver(packet: &[u8]) -> Option<usize> {
    match packet {
        [0x45..=0x4f, ..] if packet.len() >= 20 && packet[16..19] == [10, 77, 0] => {
            usize::from(packet[19]).checked_sub(1).filter(|party| *party < PARTIES)
        }
        _ => None,
    }
}

/// Hands packets to their receivers when they are due; ends when all senders have ended.
fn deliver(devices: &[Arc<File>], packets: &Receiver<Packet>, figures: &Figures) {
    for Packet { due, to, bytes } in packets {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that goes away loses its packets.
        if (&*devices[to]).write(&bytes).is_ok() {
            figures.passed.fetch_add(1, Relaxed);
        }
    }
}
