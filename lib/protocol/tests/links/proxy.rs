//! A relay between two ends of a link that freezes, cuts and corrupts what passes.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use foretoken_protocol::Address;

/// How long a relaying thread sleeps in a read before it looks at its orders.
const LOOK: Duration = Duration::from_millis(5);

/// What the relay is to do, changed while it runs.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Relay nothing, but keep connections open.
    pub(crate) frozen: AtomicBool,
    /// Every connection made before the last rise ends.
    cuts: AtomicU64,
    /// Bytes that still pass unharmed; then one fault happens.
    budget: AtomicI64,
    /// The fault: corrupt a byte, or cut.
    corrupts: AtomicBool,
    /// Whether it happens to what goes to the dialling side, or to what comes from it.
    back: AtomicBool,
    /// Faults that happened.
    harms: AtomicU64,
    /// The proxy is gone.
    stopped: AtomicBool,
}

impl Orders {
    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// One fault after this many more bytes that go `back` to the dialling side, or come from it.
    pub(crate) fn harm_after(&self, bytes: i64, corrupts: bool, back: bool) {
        self.corrupts.store(corrupts, Ordering::SeqCst);
        self.back.store(back, Ordering::SeqCst);
        self.budget.store(bytes, Ordering::SeqCst);
    }

    /// How many faults have happened.
    pub(crate) fn harms(&self) -> u64 {
        self.harms.load(Ordering::SeqCst)
    }
}

/// A relay to `upstream`, listening on an address of the same kind.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: Address,
    pub(crate) orders: Arc<Orders>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let socket = TcpStream::connect((host.as_str(), *port))?;
                socket.set_nodelay(true)?;
                Ok(Self::Tcp(socket))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
            Self::Unix(socket) => Self::Unix(socket.try_clone()?),
        })
    }

    fn end(&self) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }

    fn set_read_timeout(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_read_timeout(Some(LOOK)),
            Self::Unix(socket) => socket.set_read_timeout(Some(LOOK)),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Proxy {
    pub(crate) fn start(upstream: &Address) -> Self {
        let orders = Arc::new(Orders::default());
        orders.budget.store(i64::MAX, Ordering::SeqCst);
        let (address, accept) = listen(upstream);
        let proxy = Self {
            address,
            orders: Arc::clone(&orders),
        };
        let upstream = upstream.clone();
        thread::spawn(move || {
            while !orders.stopped.load(Ordering::SeqCst) {
                match accept() {
                    Ok(down) => match Socket::connect(&upstream) {
                        Ok(up) => relay(&down, &up, &orders),
                        Err(_) => down.end(),
                    },
                    Err(_) => thread::sleep(LOOK),
                }
            }
        });
        proxy
    }
}

type Accept = Box<dyn Fn() -> io::Result<Socket> + Send>;

fn listen(beside: &Address) -> (Address, Accept) {
    match beside {
        Address::Tcp { .. } => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            listener.set_nonblocking(true).expect("a socket option");
            let port = listener.local_addr().expect("is bound").port();
            let accept = move || {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            };
            (Address::loopback(port), Box::new(accept))
        }
        Address::Unix(path) => {
            // Several may run beside one socket, one after the other.
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let path = path.with_extension(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
            let listener = UnixListener::bind(&path).expect("binds");
            listener.set_nonblocking(true).expect("a socket option");
            let accept = move || {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                Ok(Socket::Unix(socket))
            };
            (Address::Unix(path), Box::new(accept))
        }
    }
}

fn relay(down: &Socket, up: &Socket, orders: &Arc<Orders>) {
    let born = orders.cuts.load(Ordering::SeqCst);
    for (from, to, is_back) in [(down, up, false), (up, down, true)] {
        from.set_read_timeout().expect("a socket option");
        let from = from.try_clone().expect("a descriptor");
        let to = to.try_clone().expect("a descriptor");
        let orders = Arc::clone(orders);
        thread::spawn(move || copy(from, to, &orders, born, is_back));
    }
}

fn copy(mut from: Socket, mut to: Socket, orders: &Orders, born: u64, is_back: bool) {
    let mut buffer = [0; 16 << 10];
    while orders.cuts.load(Ordering::SeqCst) == born {
        if orders.frozen.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
            continue;
        }
        let mut len = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                continue;
            }
            Err(_) => break,
        };
        if orders.back.load(Ordering::SeqCst) == is_back {
            let before = orders.budget.fetch_sub(len as i64, Ordering::SeqCst);
            if (0..len as i64).contains(&before) {
                let place = before as usize;
                orders.harms.fetch_add(1, Ordering::SeqCst);
                if orders.corrupts.load(Ordering::SeqCst) {
                    buffer[place] ^= 0x55;
                } else {
                    len = place;
                    orders.cut();
                }
            }
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    from.end();
    to.end();
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders.stopped.store(true, Ordering::SeqCst);
        self.orders.cut();
    }
}
