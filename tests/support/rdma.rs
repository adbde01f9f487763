//! Where nodes of tests listen over RDMA.

/// This host's address, with this port.
pub(crate) fn address(port: u16) -> String {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    format!("rdma://{host}:{port}")
}
