//! A collector that remembers what it was sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use tokio::{net::TcpSocket, sync::oneshot};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

/// A span, with names in digits as people write them.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) service: String,
    pub(super) resource: BTreeMap<String, String>,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) status: StatusCode,
    /// Names of what happened in it.
    pub(super) events: Vec<String>,
    attributes: BTreeMap<String, Value>,
}

impl Seen {
    /// An attribute that is a number.
    pub(super) fn number(&self, name: &str) -> i64 {
        let value = self.attributes.get(name);
        let number = match value {
            Some(Value::IntValue(number)) => Some(*number),
            _ => None,
        };
        assert!(number.is_some(), "{name} of {} is {value:?}", self.name);
        number.unwrap()
    }

    /// An attribute that is true or false, if it is there.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.attributes.get(name) {
            Some(Value::BoolValue(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// An attribute that is a text, if it is there.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(Value::StringValue(text)) => Some(text),
            _ => None,
        }
    }
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<Seen>>>);

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut store = self.0.lock().unwrap();
        for of_service in request.into_inner().resource_spans {
            let resource = of_service.resource.unwrap_or_default().attributes;
            let resource: BTreeMap<_, _> = attributes(resource)
                .into_iter()
                .filter_map(|(name, value)| match value {
                    Value::StringValue(text) => Some((name, text)),
                    _ => None,
                })
                .collect();
            let spans = of_service.scope_spans.into_iter().flat_map(|of| of.spans);
            store.extend(spans.map(|span| seen(&resource, span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attributes(list: Vec<KeyValue>) -> BTreeMap<String, Value> {
    let pair = |pair: KeyValue| Some((pair.key, pair.value?.value?));
    list.into_iter().filter_map(pair).collect()
}

fn seen(resource: &BTreeMap<String, String>, span: Span) -> Seen {
    let digits = |text: String, byte: &u8| text + &format!("{byte:02x}");
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), digits);
    Seen {
        service: resource["service.name"].clone(),
        resource: resource.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind(),
        status: span.status.unwrap_or_default().code(),
        events: span.events.into_iter().map(|event| event.name).collect(),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: attributes(span.attributes),
        name: span.name,
    }
}

/// This address, which nobody else gets, and at which nobody listens yet.
fn held(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    // It is held anew before whoever listens there is gone.
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// A collector on a port of its own.
pub(super) struct Receiver {
    store: Store,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Receiver {
    pub(super) fn start() -> Self {
        Self::start_at(held(([127, 0, 0, 1], 0).into()))
    }

    pub(super) fn start_at(socket: TcpSocket) -> Self {
        let address = socket.local_addr().unwrap();
        let store = Store::default();
        let service = TraceServiceServer::new(store.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let (listens, is_there) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let served = async {
                let incoming = TcpIncoming::from(socket.listen(1024).unwrap());
                listens.send(()).unwrap();
                let server = Server::builder().add_service(service);
                tokio::select! {
                    served = server.serve_with_incoming(incoming) => served.unwrap(),
                    _ = stopped => {}
                }
            };
            runtime.block_on(served);
        });
        is_there.recv().unwrap();
        Self {
            store,
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Dies, and leaves its address to another one.
    pub(super) fn stop(mut self) -> TcpSocket {
        let address = held(self.address);
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
        address
    }

    /// The spans of a trace so far.
    pub(super) fn of(&self, trace: &str) -> Vec<Seen> {
        let store = self.store.0.lock().unwrap();
        let spans = store.iter().filter(|span| span.trace == trace);
        spans.cloned().collect()
    }

    /// All traces so far.
    pub(super) fn traces(&self) -> BTreeSet<String> {
        let store = self.store.0.lock().unwrap();
        store.iter().map(|span| span.trace.clone()).collect()
    }
}
