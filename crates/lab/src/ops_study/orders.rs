//! Every order of a few things.

/// All orders of `0 .. count`, the first one ascending.
pub fn all(count: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for _ in 0..count {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let rest = (0..count).filter(|i| !order.contains(i)).collect::<Vec<_>>();
                rest.into_iter().map(move |i| order.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_there_once() {
        assert_eq!(all(2), [[0, 1], [1, 0]]);
        for (count, factorial) in [(1, 1), (3, 6), (4, 24)] {
            let mut orders = all(count);
            assert_eq!(orders.len(), factorial);
            assert_eq!(orders[0], (0..count).collect::<Vec<_>>());
            orders.sort();
            orders.dedup();
            assert_eq!(orders.len(), factorial, "no order twice");
            for place in 0..count {
                let first = orders.iter().filter(|o| o[place] == 0).count();
                assert_eq!(first, factorial / count, "each is as often at each place");
            }
        }
    }
}
