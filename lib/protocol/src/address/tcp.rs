//! TCP ports that a service accepts connections on.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs},
};

use socket2::{Domain, Socket, Type};

use super::listen::BACKLOG;

/// Listens at the first of the addresses of `at` that is to be had. `[::]` means every address of this
/// machine, those of IPv4 too and those alone if it has no IPv6. The socket does not block.
pub fn listen(at: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut refused = None;
    for address in at.to_socket_addrs()? {
        match at_one(address, open) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::from(ErrorKind::AddrNotAvailable)))
}

/// What `open` has at `address`, or at `0.0.0.0` if that is `[::]` and there is no IPv6.
fn at_one<T>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    open(address).or_else(|error| {
        // What a system says that lacks a family has no kind of error of its own.
        let is_for_ipv4_too = matches!(
            error.kind(),
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied
        );
        if is_every_address(address) && !is_for_ipv4_too {
            open((Ipv4Addr::UNSPECIFIED, address.port()).into())
        } else {
            Err(error)
        }
    })
}

fn is_every_address(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if is_every_address(address) {
        // Else `net.ipv6.bindv6only` decides.
        socket.set_only_v6(false)?;
    }
    // Or a service that starts anew finds the port taken by connections of the one before.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpStream};

    use super::*;

    #[test]
    fn every_address_is_of_both_kinds() {
        let listener = listen("[::]:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4 is served");
        // A machine without IPv6 has nobody who could ask for more.
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect("IPv6 is served");
        }
    }

    #[test]
    fn a_machine_without_ipv6_is_served_over_ipv4() {
        let without = |address: SocketAddr| {
            if address.is_ipv6() {
                Err(io::Error::other("no such family of addresses"))
            } else {
                Ok(address)
            }
        };
        let opened = at_one("[::]:7100".parse().expect("an address"), without);
        assert_eq!(
            opened.expect("IPv4 is there"),
            "0.0.0.0:7100".parse().expect("an address")
        );
        let error = at_one("[::1]:7100".parse().expect("an address"), without);
        assert!(error.is_err(), "nobody asked for others than this one");

        let taken = |_| Err::<(), _>(io::Error::from(ErrorKind::AddrInUse));
        let error = at_one("[::]:7100".parse().expect("an address"), taken);
        assert_eq!(
            error.expect_err("is taken").kind(),
            ErrorKind::AddrInUse,
            "a port that is taken is taken for IPv4 too"
        );
    }

    #[test]
    fn the_first_address_to_be_had_counts() {
        let taken = listen("127.0.0.1:0").expect("a port");
        let taken = taken.local_addr().expect("an address");
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = listen([taken, free].as_slice()).expect("the second one is free");
        assert_ne!(listener.local_addr().expect("an address"), taken);
        let error = listen([taken].as_slice()).expect_err("is taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
