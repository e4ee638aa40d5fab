//! The largest coalescing values that drivers take, from the kernel's source. A driver does not
//! report its limits: it refuses a request with a value beyond one.

use crate::netlink::ethtool::Coalescing;

/// The largest values that a driver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoalescingLimits {
    /// In microseconds, for receiving and for sending.
    usecs: u32,
    /// In packets, for receiving and for sending. 0 if the driver refuses packets together with
    /// microseconds.
    frames: u32,
}

const ANY: u32 = u32::MAX;

/// By the driver's name, with the file of the kernel's source (in `drivers/net/ethernet` unless it
/// begins with `drivers`) and what it compares with there.
const DRIVERS: [(&str, CoalescingLimits); 15] = [
    // intel/e1000/e1000.h, intel/e1000e/e1000.h, intel/igb/igb.h, intel/igc/igc.h:
    // `*_MAX_ITR_USECS`
    ("e1000", CoalescingLimits { usecs: 10_000, frames: ANY }),
    ("e1000e", CoalescingLimits { usecs: 10_000, frames: ANY }),
    ("igb", CoalescingLimits { usecs: 10_000, frames: ANY }),
    ("igc", CoalescingLimits { usecs: 10_000, frames: ANY }),
    // intel/ixgbe/ixgbe_ethtool.c, intel/ixgbevf/ethtool.c: `IXGBE_MAX_EITR >> 2`
    ("ixgbe", CoalescingLimits { usecs: 1022, frames: ANY }),
    ("ixgbevf", CoalescingLimits { usecs: 1022, frames: ANY }),
    // intel/i40e/i40e_txrx.h, intel/iavf/iavf_txrx.h, intel/ice/ice_txrx.h, intel/idpf/idpf_txrx.h:
    // `*_MAX_ITR`, `*_ITR_MAX`
    ("i40e", CoalescingLimits { usecs: 8160, frames: ANY }),
    ("iavf", CoalescingLimits { usecs: 8160, frames: ANY }),
    ("ice", CoalescingLimits { usecs: 8160, frames: ANY }),
    ("idpf", CoalescingLimits { usecs: 8160, frames: ANY }),
    // hisilicon/hns3/hns3_enet.h: `HNS3_INT_GL_MAX`
    ("hns3", CoalescingLimits { usecs: 8160, frames: ANY }),
    // google/gve/gve_dqo.h: `GVE_MAX_ITR_INTERVAL_DQO`
    ("gve", CoalescingLimits { usecs: 8190, frames: ANY }),
    // mellanox/mlx5/core/en_ethtool.c: `MLX5E_MAX_COAL_TIME`, `MLX5E_MAX_COAL_FRAMES`, the widths
    // of cqc's 12 and 16 bits
    ("mlx5_core", CoalescingLimits { usecs: 4095, frames: 65_535 }),
    // broadcom/tg3.h: `MAX_RXCOL_TICKS`, `MAX_RXMAX_FRAMES`, and those for sending
    ("tg3", CoalescingLimits { usecs: 1023, frames: 255 }),
    // drivers/net/vmxnet3/vmxnet3_ethtool.c: `VMXNET3_COAL_RBC_MIN_RATE` per second, and no packets
    // beside it
    ("vmxnet3", CoalescingLimits { usecs: 10_000, frames: 0 }),
];

impl CoalescingLimits {
    /// What most of the drivers above take.
    const UNKNOWN: Self = Self { usecs: 8160, frames: 255 };
    const LOW: Self = Self { usecs: 1000, frames: 32 };
    /// For a driver that refuses all else.
    const LOWEST: Self = Self { usecs: 100, frames: 0 };

    fn of(driver: Option<&str>) -> Self {
        DRIVERS
            .into_iter()
            .find(|(name, _)| Some(*name) == driver)
            .map_or(Self::UNKNOWN, |(_, limits)| limits)
    }

    fn and(self, other: Self) -> Self {
        Self { usecs: self.usecs.min(other.usecs), frames: self.frames.min(other.frames) }
    }

    fn limit(self, parameter: Coalescing) -> u32 {
        match parameter {
            Coalescing::RxUsecs | Coalescing::TxUsecs => self.usecs,
            Coalescing::RxFrames | Coalescing::TxFrames => self.frames,
            Coalescing::AdaptiveRx | Coalescing::AdaptiveTx => ANY,
        }
    }
}

/// The requests to send to a driver, in this order, until it takes one: at most six. The first has
/// the `wanted` values, each further one fewer or smaller ones. A value is never below the present
/// one (`now`), which the driver has taken before, and one that would not change is left out.
pub(crate) fn requests(
    driver: Option<&str>,
    wanted: &[(Coalescing, u32)],
    now: &[(Coalescing, u32)],
) -> Vec<Vec<(Coalescing, u32)>> {
    let present =
        |parameter: Coalescing| now.iter().find(|(which, _)| *which == parameter).map_or(0, |(_, now)| *now);
    let within = |limits: CoalescingLimits, takes: fn(Coalescing) -> bool| -> Vec<(Coalescing, u32)> {
        let kept = wanted.iter().filter(|(parameter, _)| takes(*parameter));
        kept.map(|&(parameter, wanted)| {
            let now = present(parameter);
            // A value to be lowered is no matter of the limits.
            let value = if now > wanted { wanted } else { wanted.min(limits.limit(parameter)).max(now) };
            (parameter, value)
        })
        .filter(|(parameter, value)| present(*parameter) != *value)
        .collect()
    };
    let no_limits = CoalescingLimits { usecs: ANY, frames: ANY };
    let known = CoalescingLimits::of(driver);
    let mut requests: Vec<Vec<(Coalescing, u32)>> = Vec::new();
    for request in [
        within(no_limits, |_| true),
        within(known, |_| true),
        // Queues that receive and send by one interrupt have one delay, and drivers refuse another
        // for sending (`igb_set_coalesce`, `ixgbe_set_coalesce`).
        within(known, is_of_receiving),
        // It may have refused the delay of receiving, and not that of sending.
        within(CoalescingLimits::LOW.and(known), |_| true),
        within(CoalescingLimits::LOW.and(known), is_of_receiving),
        within(CoalescingLimits::LOWEST.and(known), is_of_receiving),
    ] {
        // A device that no longer adapts its delays, and keeps them short, would interrupt more
        // often than before.
        let delays = request.iter().any(|(parameter, _)| !parameter.is_switch());
        if !requests.contains(&request) && (delays || requests.is_empty() && !request.is_empty()) {
            requests.push(request);
        }
    }
    requests
}

fn is_of_receiving(parameter: Coalescing) -> bool {
    matches!(parameter, Coalescing::AdaptiveRx | Coalescing::RxUsecs | Coalescing::RxFrames)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [(Coalescing, u32); 6] = [
        (Coalescing::AdaptiveRx, 0),
        (Coalescing::AdaptiveTx, 0),
        (Coalescing::RxUsecs, 65_534),
        (Coalescing::RxFrames, 65_534),
        (Coalescing::TxUsecs, 1024),
        (Coalescing::TxFrames, 256),
    ];

    #[test]
    fn no_driver_gets_more_than_six_requests_and_the_second_is_within_its_known_limits() {
        let now = WANTED.map(|(parameter, _)| (parameter, u32::from(parameter.is_switch())));
        for driver in DRIVERS.iter().map(|(name, _)| Some(*name)).chain([None, Some("unknown")]) {
            let requests = requests(driver, &WANTED, &now);
            assert!((3..=6).contains(&requests.len()), "{driver:?}: {requests:?}");
            assert_eq!(requests[0], WANTED);
            let limits = CoalescingLimits::of(driver);
            for (parameter, value) in requests.iter().skip(1).flatten() {
                assert!(*value <= limits.limit(*parameter), "{driver:?}: {parameter:?} {value}");
            }
        }
    }

    #[test]
    fn a_request_leaves_out_what_would_not_change_and_never_shortens_a_delay_that_is_to_grow() {
        let now = [(Coalescing::RxUsecs, 500), (Coalescing::TxUsecs, 2000), (Coalescing::RxFrames, 65_534)];
        let wanted = [WANTED[2], WANTED[3], WANTED[4]];
        let requests = requests(Some("ixgbe"), &wanted, &now);
        let (rx, tx) = (Coalescing::RxUsecs, Coalescing::TxUsecs);
        assert_eq!(
            requests,
            [
                vec![(rx, 65_534), (tx, 1024)],
                vec![(rx, 1022), (tx, 1024)],
                vec![(rx, 1022)],
                vec![(rx, 1000), (tx, 1024)],
                vec![(rx, 1000)]
            ]
        );
    }

    #[test]
    fn switches_alone_are_requested_once() {
        let wanted = [(Coalescing::AdaptiveRx, 0)];
        assert_eq!(requests(None, &wanted, &[(Coalescing::AdaptiveRx, 1)]), [wanted.to_vec()]);
        assert!(requests(None, &wanted, &[(Coalescing::AdaptiveRx, 0)]).is_empty());
    }
}
