//! The limits of the gate, read from `gates.toml` at the root of the repository.

use serde::Deserialize;
use std::collections::BTreeMap;
use tare_core::Fault;
use tare_ops::{Class, Order};

/// All limits, of one version.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Raised with every change; records name it.
    pub version: String,
    /// The timed path against its own class.
    pub emulation: Emulations,
    /// Each launch of the timed path by itself, in classes in any order.
    pub operators: Operators,
    /// A class against f32, by the name of the class.
    pub accuracy: BTreeMap<String, Accuracy>,
    /// A class against f32 on a real text.
    pub text: Text,
}

/// Limits of what each launch leaves.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operators {
    /// Largest difference from the exact result, as a share of what conformance allows the kernel.
    pub share: f64,
}

/// Limits of a class against f32 on a real text of a real model.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Mean Kullback-Leibler divergence from f32 a position, in nats.
    pub mean_kl: f64,
    /// A greedy series may leave the f32 series only where the two best f32 logits are at most this far apart.
    pub departure_gap: f64,
}

/// Limits of the timed path against one pass in the same class, by the order of sums that the class promises.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulations {
    /// Classes that keep the reference's order: nothing but equality passes.
    pub reference: Emulation,
    /// Classes in any order, which the judge computes in the reference's.
    pub free: Emulation,
}

/// Limits of the timed path against one pass in the same class.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulation {
    /// Largest difference of an emitted token's logit.
    pub logit: f64,
    /// How far an emitted token may lie under the best logit.
    pub rank_gap: f64,
    /// Largest distance of a token's cached keys in a layer, or of its values, as a share of their length: of the fourth
    /// furthest token.
    pub kv: f64,
    /// The same of the furthest token.
    pub kv_token: f64,
}

/// Limits of a class against f32.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// Largest difference of an emitted token's logit.
    pub logit: f64,
    /// How far an emitted token may lie under the best logit.
    pub rank_gap: f64,
}

impl Thresholds {
    /// The limits that this binary was built with.
    ///
    /// # Errors
    /// When the file does not parse.
    pub fn built_in() -> Result<Self, Fault> {
        toml::from_str(include_str!("../../../gates.toml"))
            .map_err(|e| Fault::new("gates.toml", "limits of the gate", e.message()))
    }

    /// The limits of the timed path in `class` against one pass in the same class.
    pub fn emulation(&self, class: Class) -> Emulation {
        match class.order {
            Order::Reference => self.emulation.reference,
            Order::Free => self.emulation.free,
        }
    }

    /// The limits of a class against f32.
    ///
    /// # Errors
    /// When the file has none for it: a class without limits cannot be gated.
    pub fn accuracy(&self, class: &str) -> Result<Accuracy, Fault> {
        self.accuracy.get(class).copied().ok_or_else(|| {
            let names: Vec<&str> = self.accuracy.keys().map(String::as_str).collect();
            let expected = format!("limits; there are those of {}", names.join(", "));
            Fault::new(format!("gates.toml: accuracy.{class}"), expected, "none")
                .remedy("calibrate the class and add it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_evidence::checks::{ANY_ORDER, EXACT_CLASS, NO_CACHE};
    use tare_model::CacheKind;
    use tare_ops::class::CLASSES;

    #[test]
    fn every_class_has_limits() {
        let t = Thresholds::built_in().unwrap();
        for c in CLASSES {
            assert!(t.accuracy(c.name).is_ok(), "{}", c.name);
        }
        assert!(t.accuracy("fp8").is_err());
        let exact = Emulation { logit: 0.0, rank_gap: 0.0, kv: 0.0, kv_token: 0.0 };
        let of = |name| t.emulation(Class::by_name(name).unwrap());
        assert!(of("bf16") == exact && of("f32") == exact, "an order that is kept leaves nothing open");
        assert!(of("bf16-free") != exact);
    }

    /// A verifier of records knows neither classes nor plans: it goes by these words and by the version's number.
    #[test]
    fn a_record_says_which_checks_it_needs_in_the_words_of_a_verifier() {
        assert!(Thresholds::built_in().unwrap().version.parse::<u32>().is_ok());
        assert_eq!(CLASSES[0].name, EXACT_CLASS);
        for c in CLASSES {
            assert_eq!(c.name.ends_with(ANY_ORDER), c.order == Order::Free, "{}", c.name);
        }
        assert_eq!(format!("{:?}", CacheKind::Recompute).to_lowercase(), NO_CACHE);
    }
}
