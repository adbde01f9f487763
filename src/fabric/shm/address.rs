use crate::fabric::scheme::Scheme;
use crate::id::NodeName;

/// The scheme of addresses of nodes of this host.
pub(in crate::fabric) const SCHEME: Scheme = Scheme {
    prefix: "shm:",
    form: "shm:NODE",
    is_local: true,
    is_built: true,
    if_absent: "`fabricast list` shows the nodes of this host",
    of_loopback: "",
    canonical: |node| Ok(node.parse::<NodeName>()?.to_string()),
};
