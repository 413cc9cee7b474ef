//! A model's weights in the hands of a backend.

use std::collections::BTreeMap;
use tare_core::Fault;
use tare_formats::{ModelConfig, Part, Role};
use tare_ops::{Backend, WeightId, WeightInfo};

use crate::{Model, ModelError};

/// What a backend holds of a model: one handle for each weight.
#[derive(Clone, Debug)]
pub struct PackedModel {
    config: ModelConfig,
    weights: BTreeMap<Role, WeightInfo>,
}

impl PackedModel {
    /// Hands every weight to `backend`, in the order in which a step uses them. A tied head is packed once.
    ///
    /// # Errors
    /// When a weight is missing or malformed, or the backend does not take it.
    pub fn pack(model: &Model, backend: &mut dyn Backend) -> Result<Self, ModelError> {
        let config = model.config().clone();
        crate::arch::family(&config)?;
        let mut weights = BTreeMap::new();
        for role in Role::all(&config) {
            let weight = model.weight(role)?;
            let id = backend.pack(&weight)?;
            let info = WeightInfo {
                id,
                name: role.to_string(),
                format: weight.format(),
                rows: weight.rows(),
                cols: weight.cols(),
                bytes: weight.bytes(),
            };
            weights.insert(role, info);
        }
        Ok(Self { config, weights })
    }

    /// The model's numbers.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Every weight, in role order.
    pub fn weights(&self) -> impl Iterator<Item = &WeightInfo> {
        self.weights.values()
    }

    /// The handle of `role`. The head of a tied model is its embedding.
    ///
    /// # Errors
    /// When the model has no such weight.
    pub fn id(&self, role: Role) -> Result<WeightId, Fault> {
        let role = if role == Role::Head && self.config.tied_head { Role::Embed } else { role };
        let found = self.weights.get(&role).map(|w| w.id);
        found.ok_or_else(|| Fault::new("weight", format!("{role} in the packed model"), "none"))
    }

    /// The handle of one weight of a layer.
    ///
    /// # Errors
    /// When the model has no such weight.
    pub fn layer(&self, layer: usize, part: Part) -> Result<WeightId, Fault> {
        self.id(Role::Layer { layer, part })
    }
}
