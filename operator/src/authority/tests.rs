use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::*;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const NAME: &str = "spiffe://foretoken/ns/chat/target/story";

fn day(number: i32) -> Timestamp {
    Timestamp::UNIX_EPOCH + DAY * number
}

fn ca(made: Timestamp) -> Ca {
    Ca {
        made,
        certificate: format!("<{}>", made.as_second() / DAY.as_secs()),
        key: "key".into(),
    }
}

/// What an operator makes of `authority` at `now`.
fn advance(authority: &mut Authority, now: Timestamp) -> bool {
    let Some(change) = authority.plan(now) else {
        return false;
    };
    if let Some(made) = change.drop_before {
        authority.0.retain(|ca| ca.made >= made);
    }
    if change.make {
        authority.0.push(ca(now));
    }
    assert_eq!(authority.plan(now), None, "one look is enough");
    true
}

#[test]
fn a_successor_that_is_asked_for_is_made_once_and_signs_when_it_is_trusted() {
    let mut authority = Authority::default();
    advance(&mut authority, day(0));
    let asked = authority.plan_succession(day(3));
    assert_eq!((asked.make, asked.drop_before), (true, None));
    authority.0.push(ca(day(3)));
    assert_eq!(authority.bundle(), "<3><0>");
    let now = day(3) + SignedDuration::from_hours(1);
    assert!(!authority.plan_succession(now).make, "it waits already");
    let signer = |now| authority.signer(now).map(|ca| ca.made);
    assert_eq!((signer(now), signer(day(4))), (Some(day(0)), Some(day(3))));
    assert!(authority.plan_succession(day(4)).make);
    let late = authority.plan_succession(day(11));
    assert_eq!((late.make, late.drop_before), (true, Some(day(3))));
}

#[test]
fn a_ca_is_followed_by_another_that_is_trusted_before_it_signs() {
    let mut authority = Authority::default();
    let mut told = Vec::new();
    for number in 0..=280 {
        let now = day(number);
        let changed = advance(&mut authority, now);
        let signer = authority.signer(now).map(|ca| ca.certificate.clone());
        let shown = (authority.bundle(), signer.unwrap_or_default());
        if changed || told.last().is_some_and(|(_, known)| *known != shown) {
            told.push((number, shown));
        }
    }
    let shown = |bundle: &str, signer: &str| (bundle.to_owned(), signer.to_owned());
    assert_eq!(
        told,
        [
            (0, shown("<0>", "<0>")),
            // Two thirds of 365 days.
            (244, shown("<244><0>", "<0>")),
            (245, shown("<244><0>", "<244>")),
            (252, shown("<244>", "<244>")),
        ]
    );
}

/// Services that read what they are given late, or in any order, trust each other all the time.
#[test]
fn whoever_meets_while_a_ca_is_replaced_each_trusts_the_others() {
    let mut authority = Authority::default();
    // Each service's leaf, and when it last read what it was given: up to half a day late.
    let mut given: Vec<Option<Leaf>> = vec![None; 4];
    let mut history: Vec<Vec<Leaf>> = vec![Vec::new(); 4];
    for hour in 0..(300 * 24) {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hour);
        advance(&mut authority, now);
        for (index, leaf) in given.iter_mut().enumerate() {
            match renewal(leaf.as_ref(), NAME, &authority, now) {
                Renewal::Keep => {}
                Renewal::Trust => {
                    let kept = leaf.take().expect("it is kept");
                    let bundle = authority.bundle();
                    *leaf = Some(Leaf { bundle, ..kept });
                }
                Renewal::Issue => {
                    let issuer = authority.signer(now).expect("there is one").made;
                    *leaf = Some(Leaf {
                        issuer,
                        issued: now,
                        name: NAME.into(),
                        bundle: authority.bundle(),
                    });
                }
            }
            history[index].push(leaf.clone().expect("it was issued"));
        }
        let used: Vec<&Leaf> = history
            .iter()
            .enumerate()
            .map(|(late, leaves)| &leaves[leaves.len().saturating_sub(1 + 4 * late)])
            .collect();
        for a in &used {
            assert!(now.duration_since(a.issued) < LEAF_LIFE, "never expired");
            for b in &used {
                let issuer = ca(b.issuer).certificate;
                assert!(a.bundle.contains(&issuer), "{a:?} and {b:?} at hour {hour}");
            }
        }
    }
}

#[test]
fn a_leaf_is_issued_anew_at_two_thirds_of_its_life_and_when_it_is_another_ones() {
    let authority = Authority(vec![ca(day(0))]);
    let leaf = Leaf {
        issuer: day(0),
        issued: day(10),
        name: NAME.into(),
        bundle: authority.bundle(),
    };
    let plan = |leaf: &Leaf, now| renewal(Some(leaf), NAME, &authority, now);
    assert_eq!(renewal(None, NAME, &authority, day(10)), Renewal::Issue);
    assert_eq!(plan(&leaf, day(10)), Renewal::Keep);
    assert_eq!(plan(&leaf, day(14)), Renewal::Keep);
    assert_eq!(plan(&leaf, day(15)), Renewal::Issue);
    assert_eq!(plan(&leaf, day(5)), Renewal::Issue, "a wrong clock made it");
    let other = Leaf {
        name: "spiffe://foretoken/ns/chat/router/story".into(),
        ..leaf.clone()
    };
    assert_eq!(plan(&other, day(10)), Renewal::Issue);
    let trusting = Leaf {
        bundle: String::new(),
        ..leaf.clone()
    };
    assert_eq!(plan(&trusting, day(10)), Renewal::Trust);
    let lost = Leaf {
        issuer: day(1),
        ..leaf
    };
    assert_eq!(plan(&lost, day(10)), Renewal::Issue, "its CA is gone");
}

#[test]
fn a_cluster_that_was_asleep_for_long_gets_a_new_ca_at_once() {
    let mut authority = Authority(vec![ca(day(0))]);
    assert!(advance(&mut authority, day(1000)));
    let made: Vec<Timestamp> = authority.0.iter().map(|ca| ca.made).collect();
    assert_eq!(made, [day(0), day(1000)]);
}
