//! The numbers of a reader's operations. Jobs refer to an operation by its number, and the reader makes the list of
//! operations in the order of the numbers ([`Operations::all`]).

use crate::geometry::Geometry;

/// What an operation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Elements by one norm of the geometry.
    Norm {
        /// Index of the norm.
        norm: usize,
        /// Whether decoded elements are in the other byte order.
        swap: bool,
    },
    /// Elements of a mask: false or true.
    Mask(bool),
    /// Elements by a table of channels of the geometry.
    Table {
        /// Index of the table.
        table: usize,
        /// As for [`Self::Norm`].
        swap: bool,
    },
    /// Decoded elements of an array, before they are normalised and cast. Values between two of them come by the
    /// operations above.
    Decoded {
        /// Index of the array.
        array: usize,
        /// As for [`Self::Norm`].
        swap: bool,
    },
}

/// The operations of a reader: each norm in both byte orders, those that write a mask, each table of channels in both
/// byte orders, and if some values lie between two elements, the decoding of each array in both byte orders.
#[derive(Clone, Copy, Debug)]
pub struct Operations {
    norms: usize,
    tables: usize,
    decoded: usize,
}

impl Operations {
    /// Returns the operations that this geometry needs. Those of one reader need the same.
    pub fn of(geometry: &Geometry) -> Self {
        let is_decoded = geometry.outputs.iter().any(|output| output.scratch > 0);
        let decoded = if is_decoded { geometry.views.len() } else { 0 };
        Self { norms: geometry.norms.len(), tables: geometry.tables.len(), decoded }
    }

    /// Returns the number of an operation.
    pub const fn number(self, operation: Operation) -> u32 {
        let number = match operation {
            Operation::Norm { norm, swap } => norm * 2 + swap as usize,
            Operation::Mask(is_inside) => self.norms * 2 + is_inside as usize,
            Operation::Table { table, swap } => self.norms * 2 + 2 + table * 2 + swap as usize,
            Operation::Decoded { array, swap } => (self.norms + self.tables + array) * 2 + 2 + swap as usize,
        };
        number as u32
    }

    /// Returns all operations, in the order of their numbers.
    pub fn all(self) -> impl Iterator<Item = Operation> {
        let both = [false, true];
        let norms = (0..self.norms).flat_map(move |norm| both.map(|swap| Operation::Norm { norm, swap }));
        let tables = (0..self.tables).flat_map(move |table| both.map(|swap| Operation::Table { table, swap }));
        let decoded = (0..self.decoded).flat_map(move |array| both.map(|swap| Operation::Decoded { array, swap }));
        norms.chain(both.map(Operation::Mask)).chain(tables).chain(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_the_order_of_their_numbers() {
        for (norms, tables, decoded) in [(1, 0, 0), (3, 0, 3), (5, 2, 0), (70, 9, 4)] {
            let operations = Operations { norms, tables, decoded };
            let numbers: Vec<u32> = operations.all().map(|operation| operations.number(operation)).collect();
            assert_eq!(numbers, (0..2 * (norms + tables + decoded) as u32 + 2).collect::<Vec<_>>());
        }
        let operations = Operations { norms: 3, tables: 1, decoded: 2 };
        let numbers = [
            Operation::Norm { norm: 2, swap: true },
            Operation::Mask(false),
            Operation::Mask(true),
            Operation::Table { table: 0, swap: false },
            Operation::Decoded { array: 1, swap: true },
        ];
        assert_eq!(numbers.map(|operation| operations.number(operation)), [5, 6, 7, 8, 13]);
    }
}
